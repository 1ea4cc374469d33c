"""From parts to wholes: the load program's solution made into a strategy.

Every shard takes the way of which, along the chain so far, most is still owed; so the sums over
any stretch of shards stay close to the solution's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from planner.lp.windows import Solution
from planner.shards import ACTIVATIONS, HELD, Activations, Mode, Place, Strategy, possible, settled

_SURE = 0.5  # of a shard


def rounded(guide: Solution) -> Strategy:
    """The strategy whose shards are the items of the guide."""
    items = guide.terms.items
    cuts = (*(first for first, _ in items), items[-1][1])
    return Strategy(guide.terms.costs, cuts, _modes(guide), _block(guide), lumped=True)


def _block(guide: Solution) -> int:
    """The first shard of the block."""
    low, last = guide.terms.lowest, len(guide.terms.items) - 1
    return next((i for i in range(low, last) if guide.weights[i].block >= _SURE), last)


def _modes(guide: Solution) -> tuple[Mode, ...]:
    block, last = _block(guide), len(guide.terms.items) - 1
    owed_held = dict.fromkeys(HELD, 0.0)
    owed_acts = dict.fromkeys(ACTIVATIONS, 0.0)  # below the block, and in it
    owed_once = dict.fromkeys(ACTIVATIONS, 0.0)
    owed_spill = 0.0
    modes = []
    for i, (shard, w) in enumerate(zip(guide.terms.shapes, guide.weights, strict=True)):
        place = Place(not i, i == last, block <= i < last and guide.terms.microbatches > 1)
        held = _most(owed_held, w.held, shard.param_bytes, HELD)
        mode = settled(shard, Mode(*held), place)
        saved, packed = (w.once, 0.0) if place.block else (w.saved, w.packed)
        owed = owed_once if place.block else owed_acts
        shares: dict[Activations, float] = {
            "saved": saved,
            "offload": packed,
            "recompute": 1 - saved - packed,
        }
        able = [
            act for act in ACTIVATIONS if possible(shard, replace(mode, activations=act), place)
        ]
        mode = replace(mode, activations=_most(owed, shares, shard.forward_us, able))
        owed_spill += w.spilled
        spilled = replace(mode, spilled=True)
        if owed_spill >= _SURE and possible(shard, spilled, place):
            mode, owed_spill = spilled, owed_spill - 1
        modes.append(mode)
    return tuple(modes)


Way = TypeVar("Way")


def _most(
    owed: dict[Way, float], shares: Mapping[Way, float], size: float, able: Sequence[Way]
) -> Way:
    """The possible way of which most is owed, once the shares of one more shard are; it is paid."""
    for way, share in shares.items():
        owed[way] += size * share
    chosen = max(able, key=lambda way: owed[way])
    owed[chosen] -= size
    return chosen
