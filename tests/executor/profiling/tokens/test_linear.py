"""Layers whose bytes no number of tokens decides are refused; curves that fit badly are told."""

import pytest
from msgspec.structs import replace
from support.quick import measured
from support.synthetic import time_us
from support.texts import SIZES, cost, text_task
from support.tokens import WIDTH, Embedding, Mix, Pair, task
from torch import nn

from executor.errors import WorkloadError
from executor.profiling.tokens import bad_fits, check_linear
from profiles.codec import align
from profiles.schema import Layer, LayerCost

pytestmark = pytest.mark.usefixtures("untimed")

FORMULA = (20_000, 3_000_000, 50_000)
COSTS = [cost(size, FORMULA, fixed_bytes=12_345) for size in (100, *SIZES)]


def _with(name: str, sizes: list[int]) -> list[LayerCost]:
    return [replace(one, **{name: size}) for one, size in zip(COSTS, sizes, strict=True)]


def test_what_grows_with_tokens_passes() -> None:
    """Buffers in proportion, padded; beside them constants too, and the larger of two."""
    check_linear("here", COSTS)
    check_linear("here", _with("in_bytes", [align(3 * one.microbatch) for one in COSTS]))
    check_linear("here", _with("out_bytes", [0] * 5))
    peaks = [max(10**6, 500 * one.microbatch) for one in COSTS]
    check_linear("here", _with("backward_peak_bytes", peaks))


@pytest.mark.parametrize("name", ["in_bytes", "offload_bytes", "saved_bytes", "forward_peak_bytes"])
def test_what_grows_faster_is_refused_by_name(name: str) -> None:
    """A tensor of tokens by tokens, alone or with others."""
    for linear in (0, 64):
        sizes = [align(4 * one.microbatch * (one.microbatch + linear)) for one in COSTS]
        with pytest.raises(WorkloadError, match=f"^here: its {name} are .* which is not in propor"):
            check_linear("here", _with(name, sizes))


def test_buffers_that_are_as_large_at_every_length_are_refused() -> None:
    """A table that goes from layer to layer would be scaled with the tokens."""
    sizes = [align(256 * one.microbatch + 4096) for one in COSTS]
    with pytest.raises(WorkloadError, match=r"its out_bytes are \d+ at 256 tokens and \d+ at 4096"):
        check_linear("here", _with("out_bytes", sizes))


def test_too_few_lengths_that_fit_are_refused() -> None:
    """No curve goes through three, and bytes are known from a multiple of 256."""
    with pytest.raises(WorkloadError, match="only 3 lengths fit the device, up to 512; a curve"):
        check_linear("here", COSTS[:3])
    odd = [cost(size, FORMULA) for size in (10, 20, 40, 100)]
    with pytest.raises(WorkloadError, match="no multiple of 256 among the lengths fits"):
        check_linear("here", odd)


def _uneven(layer: Layer, op: str, percent: int) -> Layer:
    """The layer with an op that was measured so much too slow at one length, and too fast at the
    next."""
    costs = list(layer.costs)
    for n, one in enumerate(costs):
        us = getattr(one, op).median_us * (100 + percent * (-1) ** n) // 100
        costs[n] = replace(one, **{op: time_us(us)})
    return replace(layer, costs=tuple(costs))


def test_curves_that_fit_badly_are_told() -> None:
    """How many, and which is the worst."""
    good = text_task(layers=2).layers
    assert bad_fits(good) == ""
    told = bad_fits([good[0], _uneven(_uneven(good[1], "forward", 20), "backward", 40)])
    assert told.startswith("2 of 10 curves are more than 10 % off what was measured, the worst")
    assert "backward of layer 1 (Block) by 54 %" in told


class Pairs(nn.Module):
    """Hands on what every token thinks of every other one."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0] @ pair[0].T, pair[1]


class Few(nn.Module):
    """As many numbers of each token as the loss takes."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0][:, :WIDTH] * 1, pair[1]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (
            (Embedding(), Mix()),
            r"task toy: layer 1 \(Mix\): its offload_bytes are \d+ at 21 tokens",
        ),
        ((Embedding(), Pairs(), Few()), r"layer 1 \(Pairs\): its out_bytes are \d+ at 21 tokens"),
    ],
)
def test_a_model_with_masks_of_tokens_by_tokens_is_refused(
    layers: tuple[nn.Module, ...], text: str
) -> None:
    """As soon as it was measured, by the name of the layer."""
    with pytest.raises(WorkloadError, match=text):
        measured(task(*layers), 1)
