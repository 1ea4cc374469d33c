"""From parts to wholes: the load program's solution made into a strategy.

Every shard takes the way of which, along the chain so far, most is still owed; so the sums over
any stretch of shards stay close to the solution's.
"""

from collections.abc import Sequence
from typing import TypeVar

from planner.lp.windows import Solution
from planner.shards import HELD, Activations, Mode, Place, Strategy, settled

_SURE = 0.5  # of a shard


def rounded(guide: Solution) -> Strategy:
    """The strategy whose shards are the items of the guide."""
    items = guide.terms.items
    cuts = (*(first for first, _ in items), items[-1][1])
    return Strategy(guide.terms.costs, cuts, _modes(guide), _block(guide), lumped=True)


def _block(guide: Solution) -> int:
    """The first shard of the block."""
    low, high = guide.part.low, guide.part.high
    return next((i for i in range(low, high) if guide.weights[i].block >= _SURE), high)


def _modes(guide: Solution) -> tuple[Mode, ...]:
    block, last = _block(guide), len(guide.terms.items) - 1
    owed_held = dict.fromkeys(HELD, 0.0)
    owed_acts: dict[Activations, float] = {"recompute": 0.0, "saved": 0.0, "offload": 0.0}
    owed_once: dict[Activations, float] = {"recompute": 0.0, "saved": 0.0}
    owed_spill = 0.0
    modes = []
    for i, (shard, w) in enumerate(zip(guide.terms.shapes, guide.weights, strict=True)):
        held = _most(owed_held, w.held, shard.param_bytes)
        place = Place(not i, i == last, block <= i < last and guide.terms.microbatches > 1)
        act: Activations = "recompute"
        if place.block:
            act = _most(owed_once, {"saved": w.once, "recompute": 1 - w.once}, shard.forward_us)
        elif not place.last:
            parts: dict[Activations, float] = {
                "saved": w.saved,
                "offload": w.packed,
                "recompute": 1 - w.saved - w.packed,
            }
            barred: Sequence[Activations] = ("saved",) if held[0] == "streamed" else ()
            act = _most(owed_acts, parts, shard.forward_us, barred)
        owed_spill += w.spilled
        spilled = owed_spill >= 0.5 and act != "saved"
        owed_spill -= spilled
        modes.append(settled(shard, Mode(*held, act, spilled), place))
    return tuple(modes)


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
