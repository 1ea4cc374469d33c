"""Checks that a layer's bytes grow with its tokens alone, and how well its curves fit."""

from collections.abc import Sequence

from executor.errors import WorkloadError
from profiles.codec import ALIGNMENT
from profiles.curves import FEWEST, IN_PROPORTION, NO_FASTER, curves_of
from profiles.schema import Layer, LayerCost

_SLACK = 1.01  # kernels choose their scratch by size
_BAD_PPM = 100_000


def check_linear(where: str, costs: Sequence[LayerCost]) -> None:
    """WorkloadError for a layer with bytes that tokens alone do not decide: a boundary's must be in
    proportion to them, and all others may grow no faster."""
    if len(costs) < FEWEST:
        raise WorkloadError(
            f"{where}: only {len(costs)} lengths fit the device, up to {costs[-1].microbatch}; a "
            f"curve needs {FEWEST}: give shorter --lengths or more --device-memory"
        )
    whole = [cost for cost in costs if cost.microbatch % ALIGNMENT == 0]
    if not whole:
        raise WorkloadError(
            f"{where}: no multiple of {ALIGNMENT} among the lengths fits the device; give shorter "
            "--lengths or more --device-memory"
        )
    for name in (*IN_PROPORTION, *NO_FASTER):
        for cost in costs:
            long = whole[-1] if name in IN_PROPORTION else costs[-1]
            found, most = getattr(cost, name), getattr(long, name)
            if found is None or most is None:
                continue
            tokens, longest = cost.microbatch, long.microbatch
            full = -(-tokens // ALIGNMENT) * ALIGNMENT
            grows_faster = found * longest * _SLACK < most * tokens
            is_constant = (
                name in IN_PROPORTION and found * longest > most * full and tokens < longest
            )
            if grows_faster or is_constant:
                raise WorkloadError(
                    f"{where}: its {name} are {found} at {tokens} tokens and {most} at {longest}, "
                    "which is not in proportion; let what goes from layer to layer, and what is "
                    "kept for backward, have the tokens as one of its dimensions, once (no mask of "
                    "tokens by tokens, and scaled_dot_product_attention in place of softmax)"
                )


def bad_fits(layers: Sequence[Layer]) -> str:
    """The number of curves that are far from what was measured, and the worst of them, in words;
    nothing where all are near."""
    off = [
        (curve.off_ppm, n, curve.op)
        for n, one in enumerate(layers)
        for curve in curves_of(one.costs)
    ]
    bad = [one for one in off if one[0] > _BAD_PPM]
    if not bad:
        return ""
    ppm, n, op = max(bad)
    return (
        f"{len(bad)} of {len(off)} curves are more than {_BAD_PPM // 10**4} % off what was "
        f"measured, the worst {op} of layer {n} ({layers[n].name}) by {ppm / 10**4:.0f} %; "
        "profile on an idle machine, or with more --samples or other --lengths"
    )
