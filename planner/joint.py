"""Two tasks on one device in one round: what one leaves idle, the other uses.

    compute   a.F a.F b.B a.F b.B b.B a.B a.B a.B b.F ...     one op at a time, of either
    h2d       loads of both, and so on

Each task has a part of the device's memory and a choice that fits it. Ops start when they can, of
either task, which gives the order that is then fixed; several offsets between the two are tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from msgspec import structs

from planner.dispatch import Draft, Orders, dispatched
from planner.ops import Dependency, owned
from planner.program import Cycle, assembled
from planner.rounds import Round
from planner.timeline import Deadlock, Settled, settled
from plans.schema import Buffer, Memory, Program

_OFFSETS = (0, 250, 500, 750)  # of the second task's round against the first's, in thousandths


@dataclass(frozen=True, eq=False)
class Pair:
    """Two laid out rounds of different tasks that fit one device together."""

    one: Round
    other: Round

    @cached_property
    def best(self) -> tuple[Settled, Orders]:
        """The shortest steady state found."""
        found = [item for offset in _OFFSETS for item in self._tried(offset)]
        return min(found, key=lambda item: item[0].period_us)

    @property
    def period_us(self) -> int:
        return self.best[0].period_us

    def _draft(self, offset: int) -> Draft:
        """Both rounds by positions. Each task's compute stays in its order."""
        first, second = self.one.draft, self.other.draft
        count = len(first.us)
        needs = [list(edges) for edges in first.needs]
        needs += [[Dependency(at + count, back) for at, back in e] for e in second.needs]
        chains = [*first.chains, *(tuple(at + count for at in c) for c in second.chains)]
        rank = [1000 * place // count for place in first.rank]
        rank += [(1000 * place // len(second.us) + offset) % 1000 for place in second.rank]
        return Draft(
            us=first.us + second.us,
            streams=first.streams + second.streams,
            needs=needs,
            rank=rank,
            movable=first.movable | {at + count for at in second.movable},
            chains=tuple(chains),
        )

    def _tried(self, offset: int) -> Iterator[tuple[Settled, Orders]]:
        draft = self._draft(offset)
        for orders in dispatched(draft):
            try:
                state = settled(draft.us, orders.queues.values(), orders.needs)
            except Deadlock:
                continue
            yield state, orders

    def program(self) -> Program:
        """The timed program of both tasks."""
        state, orders = self.best
        both, count = (self.one, self.other), len(self.one.entries)
        here = {at for at in orders.moved if at < count}
        there = {at - count for at in orders.moved - here}
        entries = [*self.one.entries, *self.other.entries]
        return assembled(
            tuple(made.choice.costs.task.name for made in both),
            self.memory,
            tuple(self._buffers()),
            Cycle.dispatched(entries, orders, state),
            enter=[*self.one.entering(here), *self.other.entering(there)],
            leave=[*self.one.leaving(), *self.other.leaving()],
        )

    @property
    def memory(self) -> Memory:
        """Slabs one after the other; graphs of both may be alive while either computes."""
        both = (self.one, self.other)
        return Memory(
            sum(made.slab.bytes for made in both),
            sum(made.choice.reserve_bytes for made in both),
            sum(made.slab.live_bytes for made in both),
        )

    def _buffers(self) -> Iterator[Buffer]:
        for made, base in ((self.one, 0), (self.other, self.one.slab.bytes)):
            for buffer in made.slab.buffers:
                name = owned(buffer.name, made.choice.costs.task.name)
                yield structs.replace(buffer, name=name, offset=base + buffer.offset)
