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
from planner.hazards import named
from planner.rounds import Round
from planner.timeline import Entry, Settled, once, periodic, settled
from plans.schema import Buffer, Memory, Program, Role

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

    @cached_property
    def entries(self) -> list[Entry]:
        """The ops of both, their buffers named after their tasks."""
        both = (self.one, self.other)
        return [self._renamed(made, item) for made in both for item in made.entries]

    def _renamed(self, made: Round, item: Entry) -> Entry:
        def names(roles: dict[Role, str]) -> dict[Role, str]:
            return {role: _name(made, buffer) for role, buffer in roles.items()}

        op = structs.replace(item.op, reads=names(item.op.reads), writes=names(item.op.writes))
        return Entry(op, item.us)

    def _draft(self, offset: int) -> Draft:
        """Both rounds by positions. Each task's compute stays in its order."""
        first, second = self.one.draft, self.other.draft
        count = len(first.us)
        needs = [list(edges) for edges in first.needs]
        needs += [[(at + count, back) for at, back in edges] for edges in second.needs]
        (upper,), (lower,) = first.chains, second.chains
        rank = [1000 * place // count for place in first.rank]
        rank += [(1000 * place // len(second.us) + offset) % 1000 for place in second.rank]
        return Draft(
            us=first.us + second.us,
            streams=first.streams + second.streams,
            needs=needs,
            rank=rank,
            movable=first.movable | {at + count for at in second.movable},
            chains=(upper, tuple(at + count for at in lower)),
        )

    def _tried(self, offset: int) -> Iterator[tuple[Settled, Orders]]:
        draft = self._draft(offset)
        for orders in dispatched(draft):
            try:
                state = settled(draft.us, list(orders.queues.values()), orders.needs)
            except ValueError:
                continue
            yield state, orders

    def program(self) -> Program:
        """The timed program of both tasks."""
        orders, entries = self.best[1], self.entries
        order = [at for stream in sorted(orders.queues) for at in orders.queues[stream]]
        phase = periodic(named(entries, orders.needs, order))
        moved = {entries[at].op.id for at in orders.moved}
        both = (self.one, self.other)
        enter = [self._renamed(made, e) for made in both for e in made.entering(moved)]
        leave = [self._renamed(made, e) for made in both for e in made.leaving()]
        entered, left = once(enter), once(leave)
        tasks = tuple(made.choice.costs.task.name for made in both)
        return Program(
            name="+".join(tasks),
            memory=(self.memory,),
            tasks=tasks,
            enter_us=entered.span_us,
            period_us=phase.period_us,
            round_us=phase.span_us,
            leave_us=left.span_us,
            buffers=tuple(self._buffers()),
            enter=entered.ops,
            round=phase.ops,
            leave=left.ops,
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
                yield structs.replace(
                    buffer, name=_name(made, buffer.name), offset=base + buffer.offset
                )


def _name(made: Round, buffer: str) -> str:
    """A device buffer's name with its task in it; host buffers have it already."""
    space, slash, name = buffer.partition("/")
    return f"{space}/{made.choice.costs.task.name}.{name}" if slash else buffer
