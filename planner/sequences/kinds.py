"""Kinds of rounds: the full round without some of its microbatches, and with times of its own.

kind 0   0.compute  F0 F1 F2 B0 B1 B2      1.compute  F3 B3 F4 B4
kind 1   0.compute  F0 F1    B0 B1         1.compute  F2 B2

All kinds have the slab of kind 0 and the order of its streams. What waits for an op that is left
out waits for all that this one waited for.

Passes take what they do in the mean of the kind's steps, and a little more: a pipeline waits now
for this microbatch, now for that one, so that steps last longer in the mean than the mean step.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from planner.lowering import PipelineRound
from planner.rounds import Cycle, Emitter, Entry, Needs, Orders, steady_state
from planner.shards import MicrobatchCost
from plans.ops import OpName
from plans.schema import Program, RoundKind

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

_CARRIED = ("batch", "x", "dx", "a", "tie")  # items of which each microbatch has one


Costs = Sequence[MicrobatchCost]
"""Of each microbatch."""


class Shape(NamedTuple):
    """A kind of rounds: the full round's microbatches that it has, ascending, and the most tokens
    of each. ends: what each takes with nothing, with the most tokens, and with the largest sum of
    squares; shares: how much of these two each has in the mean (2 x microbatches); some: the same
    of some steps."""

    kept: tuple[int, ...]
    tokens: tuple[int, ...]
    ends: tuple[Costs, Costs, Costs]
    shares: Floats
    some: Floats


def with_kinds(full: PipelineRound, shapes: Sequence[Shape]) -> Program:
    """The program of the full round whose kinds have these shapes; the first has all
    microbatches."""
    first, *others = (cycle_of(full, shape) for shape in shapes)
    return structs.replace(
        full.program(first),
        tokens=shapes[0].tokens,
        kinds=tuple(map(_kind, (shape.tokens for shape in shapes[1:]), others)),
    )


def _kind(tokens: tuple[int, ...], cycle: Cycle) -> RoundKind:
    ops = cycle.written()
    return RoundKind(tokens, cycle.state.period_us, max(op.end_us for op in ops), ops)


def cycle_of(full: PipelineRound, shape: Shape) -> Cycle:
    """The rounds of a shape, in the orders of the full one's streams."""
    orders = full.best[1]
    ends = [_entries(full, shape.kept, costs) for costs in shape.ends]
    numbers = {m: number for number, m in enumerate(shape.kept)}
    mine = [at for at, one in enumerate(ends[0]) if microbatch_of(one.name) in {None, *numbers}]
    place = {at: number for number, at in enumerate(mine)}
    needs = _closed(orders.needs, mine, place)
    queues = {
        stream: [place[at] for at in queue if at in place]
        for stream, queue in orders.queues.items()
    }
    left = Orders({stream: queue for stream, queue in queues.items() if queue}, needs, frozenset())
    kept = [_renumbered(ends[0][at], numbers) for at in mine]
    own = [microbatch_of(one.name) or 0 for one in kept]
    us = _times(np.array([[one[at].us for at in mine] for one in ends]), own, shape, left)
    kept = [one._replace(us=took) for one, took in zip(kept, us, strict=True)]
    return Cycle(kept, left, steady_state(us, left.queues.values(), needs))


def _times(ends: Array, own: Sequence[int], shape: Shape, orders: Orders) -> list[int]:
    """The times of ops, of which those that vary take as much longer than in the mean as steps do
    over the step whose ops take the mean of theirs. ends: the times at the ends of the shape; own:
    the microbatches of ops."""
    more = ends[1:] - ends[0]

    def took(shares: Floats) -> Array:
        us = ends[0] + (more * shares[:, own]).sum(axis=0)
        return np.asarray(np.rint(us), np.int64)

    def period_us(ops: Array) -> int:
        return steady_state(ops.tolist(), orders.queues.values(), orders.needs).period_us

    mean, longer = took(shape.shares), 1.0
    if len(shape.some):
        steps = [took(one) for one in shape.some]
        usual = period_us(np.rint(np.mean(steps, axis=0)).astype(np.int64))
        longer = sum(map(period_us, steps)) / len(steps) / max(1, usual)
    return list(np.where(more.any(axis=0), np.rint(mean * longer), mean).astype(int).tolist())


def _entries(full: PipelineRound, kept: Sequence[int], costs: Costs) -> list[Entry]:
    """The ops of the full round where these microbatches take so much."""
    own, each = full.strategy, dict(zip(kept, costs, strict=True))
    every = [each.get(m, cost) for m, cost in enumerate(own.sized)]
    emitter = Emitter(own, full.links, each=every)
    return list(emitter.entries(full.walk.visits))


def microbatch_of(name: OpName) -> int | None:
    """The microbatch that an op is for; None for one of the whole step."""
    passes = name.item == "s" and name.kind in "FBIW"
    return name.index if passes or name.item in _CARRIED else None


def _renumbered(entry: Entry, numbers: Mapping[int, int]) -> Entry:
    """The op under the number that its microbatch has in this kind."""
    m = microbatch_of(entry.name)
    if m is None:
        return entry
    name = entry.name
    return entry._replace(name=OpName(name.task, name.item, name.number, name.kind, numbers[m]))


def _closed(needs: Needs, mine: Sequence[int], place: Mapping[int, int]) -> list[list[int]]:
    """The needs of the ops that are left, by their new positions. Where they lead through ops that
    are left out to a round still earlier, the one before does: it is later."""
    count = len(needs)

    def kept(at: int) -> list[int]:
        found, seen, open_ = set[int](), set[int](), list(needs[at])
        while open_:
            dep = open_.pop()
            if dep in seen:
                continue
            seen.add(dep)
            if dep % count in place:
                found.add(place[dep % count] - len(mine) * (dep < 0))
            else:
                open_ += [one if dep >= 0 or one < 0 else one - count for one in needs[dep % count]]
        return sorted(found)

    return [kept(at) for at in mine]
