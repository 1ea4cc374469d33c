"""From parts to wholes: the load program's solution made into a strategy.

Every shard takes the way of which, along the chain so far, most is still owed; so the sums over
any stretch of shards stay close to the solution's. What the solution was not sure of is asked for
again, with what it was sure of given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from planner.bounds.branch_and_bound import again
from planner.bounds.rows import Weights, grouped
from planner.bounds.windows import Solution
from planner.inputs import Effort
from planner.shards import HELD, Activations, Mode, Place, Strategy, nearest_mode

_SURE = 0.5  # of a shard


def rounded(guide: Solution, groups: int, effort: Effort, *, even: bool) -> Strategy:
    """The strategy whose shards are the items of the guide; where it is not sure, the program is
    solved again with the modes of which it is.

    even: what is done in a group of items is spread evenly over them. The program does not care,
    but copies that come at once wait for each other.
    """
    modes, sure = _modes(_evened(guide, groups) if even else guide, groups)
    if not all(sure):
        fixed = tuple(m if s else None for m, s in zip(modes, sure, strict=True))
        closer = replace(guide, part=replace(guide.part, fixed=fixed))
        guide = again(closer, guide.terms, groups, effort) or guide
    modes, _ = _modes(guide, groups)
    items = guide.terms.items
    cuts = (*(first for first, _ in items), items[-1][1])
    return Strategy(guide.terms.costs, cuts, modes, _block(guide), lumped=True)


def _packed(guide: Solution, groups: int) -> list[float]:
    """The part of every item that packs, equal within a group, so that copies go all the time."""
    packed = [w.packed for w in guide.weights]
    for members in _alike(guide, groups):
        for i in members:
            packed[i] = sum(guide.weights[j].packed for j in members) / len(members)
    return packed


def _alike(guide: Solution, groups: int) -> Iterable[list[int]]:
    """Items of one group, below the block or in it."""
    alike: dict[tuple[int, bool], list[int]] = {}
    for i, group in enumerate(grouped(guide.terms.shapes, groups)):
        alike.setdefault((group, i >= _block(guide)), []).append(i)
    return alike.values()


def _evened(guide: Solution, groups: int) -> Solution:
    weights = list(guide.weights)
    for members in _alike(guide, groups):
        of, count = [weights[i] for i in members], len(members)
        mean = Weights(
            {h: sum(w.held.get(h, 0.0) for w in of) / count for h in HELD},
            *(
                sum(getattr(w, what) for w in of) / count
                for what in ("saved", "packed", "spilled", "block", "once")
            ),
        )
        for i in members:
            weights[i] = mean
    return replace(guide, weights=tuple(weights))


def _block(guide: Solution) -> int:
    """The first shard of the block, where the program does not say exactly by its weights."""
    low, high = guide.part.low, guide.part.high
    weights = guide.weights
    return next((i for i in range(low, high) if weights[i].block >= _SURE), high)


def _modes(guide: Solution, groups: int) -> tuple[tuple[Mode, ...], list[bool]]:
    """Modes for all shards, and which of them the solution has for the larger part."""
    block, last = _block(guide), len(guide.terms.items) - 1
    owed_held = dict.fromkeys(HELD, 0.0)
    owed_acts: dict[Activations, float] = {"recompute": 0.0, "saved": 0.0}
    owed_once: dict[Activations, float] = {"recompute": 0.0, "saved": 0.0}
    owed_spill, owed_packed, count = 0.0, 0.0, guide.terms.microbatches  # microbatches that pack
    modes, sure = [], []
    packing = _packed(guide, groups)
    for i, (shard, w) in enumerate(zip(guide.terms.shapes, guide.weights, strict=True)):
        held = _most(owed_held, w.held, shard.param_bytes)
        place = Place(not i, i == last, block <= i < last and guide.terms.microbatches > 1)
        shares: dict[Activations, float]
        if place.last:
            act: Activations = "recompute"
            shares = {act: 1.0}
        elif place.block:
            shares = {"saved": w.once, "recompute": 1 - w.once}
            act = _most(owed_once, shares, shard.forward_us)
        else:
            shares = {"saved": w.saved, "recompute": 1 - w.saved}
            barred: Sequence[Activations] = ("saved",) if held[0] == "streamed" else ()
            act = _most(owed_acts, shares, shard.forward_us, barred)
            owed_packed += count * packing[i]
        owed_spill += w.spilled
        spilled = owed_spill >= 0.5 and act != "saved"
        owed_spill -= spilled
        mode = Mode(held[0], held[1], act, spilled)
        packed = min(count, round(owed_packed)) if act == "recompute" and shard.offload_bytes else 0
        if packed > 0 and not (place.last or place.block):
            owed_packed -= packed
            mode = replace(mode, activations="offload", recomputed=count - packed)
        modes.append(nearest_mode(shard, mode, place))
        parts = w.held.get(held, 0.0), shares[act], w.spilled if spilled else 1 - w.spilled
        sure.append(min(parts) >= _SURE and modes[-1].held == held)
    return tuple(modes), sure


Way = TypeVar("Way")


def _most(
    owed: dict[Way, float], shares: dict[Way, float], size: float, barred: Sequence[Way] = ()
) -> Way:
    """The way of which most is owed, once the shares of one more shard are; it is paid."""
    for way, share in shares.items():
        owed[way] += size * share
    chosen = max((way for way in owed if way not in barred), key=lambda way: owed[way])
    owed[chosen] -= size
    return chosen
