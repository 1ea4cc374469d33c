"""From parts of layers to whole shards: the load program's solution made into a choice.

Every shard takes the way of which, along the chain so far, most is still owed. So the sums over
any stretch of shards stay close to the solution's.
"""

from collections.abc import Sequence
from itertools import pairwise

from planner.choice import Choice
from planner.costs import ShardCost, TaskCosts
from planner.modes import HELD, Activations, Held, Mode, Place, settled
from planner.phases import Weights


def rounded(
    costs: TaskCosts,
    cuts: tuple[int, ...],
    items: Sequence[tuple[int, int]],
    weights: Sequence[Weights],
    block: int,
) -> Choice:
    """A choice with these cuts and this block, whose shards keep their graphs.

    items: the layers (first, end) that each of `weights` is for.
    """
    last = len(cuts) - 2
    owed_held = dict.fromkeys(HELD, 0.0)
    owed_acts: dict[Activations, float] = {"recompute": 0.0, "saved": 0.0, "offload": 0.0}
    owed_spill, modes = 0.0, []
    for k, (first, end) in enumerate(pairwise(cuts)):
        shard = costs.shard(first, end)
        parts = [
            (min(end, b) - max(first, a), b - a, w)
            for (a, b), w in zip(items, weights, strict=True)
            if a < end and first < b
        ]
        held = _held(shard, parts, owed_held)
        place = Place(not k, k == last, block <= k and block < last)
        act: Activations = "saved" if place.block else "recompute"
        if not place.block and not place.last:
            act = _activations(shard, parts, owed_acts, held)
        owed_spill += sum(layers * w.spilled for layers, _, w in parts) / (end - first)
        spilled = owed_spill >= 0.5 and act != "saved"
        owed_spill -= spilled
        modes.append(settled(shard, Mode(held[0], held[1], act, spilled), place))
    return Choice(costs, cuts, tuple(modes), block, ahead=1, lumped=True)


def blocks(
    costs: TaskCosts,
    cuts: tuple[int, ...],
    items: Sequence[tuple[int, int]],
    weights: Sequence[Weights],
) -> set[int]:
    """First shards that a block may have, where the solution has parts of all layers in its own.

    Graphs that take what the solution's take; or from the first layer on that is there by half.
    """
    last = len(cuts) - 2
    if costs.microbatches == 1:
        return {last}
    half = next((a for (a, _), w in zip(items, weights, strict=True) if w.last >= 0.5), cuts[last])
    first = next(k for k in range(last + 1) if cuts[k] >= half or k == last)
    return {_block(costs, cuts, items, weights), first}


def _block(
    costs: TaskCosts,
    cuts: tuple[int, ...],
    items: Sequence[tuple[int, int]],
    weights: Sequence[Weights],
) -> int:
    room = sum(
        w.last * costs.shard(*item).saved_bytes for item, w in zip(items, weights, strict=True)
    )
    last = len(cuts) - 2
    taken = costs.shard(*cuts[last:]).saved_bytes
    for k in range(last - 1, -1, -1):
        size = costs.shard(cuts[k], cuts[k + 1]).saved_bytes
        if taken + size / 2 > room:
            return k + 1
        taken += size
    return 0


Part = tuple[int, int, Weights]  # layers of an item in the shard, layers of the item


def _held(shard: ShardCost, parts: Sequence[Part], owed: dict[Held, float]) -> Held:
    total = sum(layers for layers, _, _ in parts)
    for layers, _, weight in parts:
        for held, share in weight.held.items():
            owed[held] += shard.param_bytes * share * layers / total
    chosen = max(owed, key=lambda held: owed[held])
    owed[chosen] -= shard.param_bytes
    return chosen


def _activations(
    shard: ShardCost, parts: Sequence[Part], owed: dict[Activations, float], held: Held
) -> Activations:
    total = sum(layers for layers, _, _ in parts)
    for layers, _, w in parts:
        share = shard.forward_us * layers / total
        owed["saved"] += share * w.saved
        owed["offload"] += share * w.packed
        owed["recompute"] += share * (1 - w.saved - w.packed)
    allowed = dict(owed)
    if held[0] == "streamed":
        del allowed["saved"]
    chosen = max(allowed, key=lambda act: owed[act])
    owed[chosen] -= shard.forward_us
    return chosen
