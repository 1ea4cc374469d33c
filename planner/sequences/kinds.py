"""Kinds of rounds: the full round without some of its microbatches, and with times of its own.

kind 0   0.compute  F0 F1 F2 B0 B1 B2      1.compute  F3 B3 F4 B4
kind 1   0.compute  F0 F1    B0 B1         1.compute  F2 B2

All kinds have the slab of kind 0 and the order of its streams. What waits for an op that is left
out waits for all that this one waited for.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from planner.lowering import PipelineRound
from planner.rounds import Cycle, Emitter, Entry, Needs, Orders, settled
from planner.shards import MicrobatchCost
from plans.schema import OpName, Program, RoundKind

_CARRIED = ("batch", "x", "dx", "a", "tie")  # items of which each microbatch has one


class Shape(NamedTuple):
    """A kind of rounds: the full round's microbatches that it has, ascending, the most tokens of
    each, and what each takes on average."""

    kept: tuple[int, ...]
    tokens: tuple[int, ...]
    costs: tuple[MicrobatchCost, ...]


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
    own, orders = full.strategy, full.best[1]
    each = dict(zip(shape.kept, shape.costs, strict=True))
    every = [each.get(m, cost) for m, cost in enumerate(own.sized)]
    emitter = Emitter(own.costs, own.shards, own.modes, full.links, each=every)
    entries = list(emitter.entries(full.walk.visits))
    numbers = {m: number for number, m in enumerate(shape.kept)}
    mine = [at for at, one in enumerate(entries) if microbatch_of(one.name) in {None, *numbers}]
    place = {at: number for number, at in enumerate(mine)}
    kept = [_renumbered(entries[at], numbers) for at in mine]
    needs = _closed(orders.needs, mine, place)
    queues = {
        stream: [place[at] for at in queue if at in place]
        for stream, queue in orders.queues.items()
    }
    left = Orders({stream: queue for stream, queue in queues.items() if queue}, needs, frozenset())
    state = settled([one.us for one in kept], left.queues.values(), needs)
    return Cycle.dispatched(kept, left, state)


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
