"""From a strategy to its program: the ops of one round, linked by their hazards, ordered and timed.

    compute   F0 F1 .. FK-2 | BK-1 .. B1 B0     all microbatches of a shard in turn (shard-major),
                                                those of the block at the top one by one
    h2d       P P P ...        P  P  P          what is not on the device when it is needed
    d2h                        S  S  S          gradients and whatever else leaves
    host                          U  U  U       updates; the next round's P waits (@-1)

Where updates wait for the norms of all gradients, every shard's last B is followed by its N, and
the last N by all updates:

    compute   .. B1 N1 B0 N0 | U U (on the device)
    d2h          S  S     S norms
    host                          U  U  U       in the order of the next forward

Resident parameters and state are loaded by `enter`, updated on the device, and written back by
`leave`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from planner.rounds.emit import Emitter
from planner.rounds.hazards import dependencies
from planner.rounds.host_bytes import Scratch
from planner.rounds.list_schedule import (
    Draft,
    Steady,
    dispatched,
    in_order,
    shortest,
    steady,
    without,
)
from planner.rounds.ops import Entry
from planner.rounds.program import Cycle, assembled
from planner.rounds.shard_major import PARAM, ShardMajor
from planner.rounds.slab import Ledger, Slab, stretched
from planner.shards import Clock, Links, Slots, Strategy, slots_of
from plans.ops import Lane, OpKind, OpName
from plans.schema import Memory, Program

_REPAIRS = 3  # times that loads made too early are put back


@dataclass(frozen=True, eq=False)
class Round:
    """A strategy laid out in a slab of at most `room` bytes, or of the least it needs."""

    strategy: Strategy
    links: Links
    room: int

    @cached_property
    def slots(self) -> Slots:
        return slots_of(self.strategy)

    @cached_property
    def slab(self) -> Slab:
        return lay_out(self.slots, self.links, self.room)

    @cached_property
    def shard_major(self) -> ShardMajor:
        return ShardMajor(self.slots)

    @cached_property
    def entries(self) -> list[Entry]:
        """The ops in the order of their meaning."""
        return list(self._emitter(self.links).entries(self.shard_major.visits()))

    def _emitter(self, links: Links) -> Emitter:
        return Emitter(self.strategy.costs, self.strategy.shards, self.strategy.modes, links)

    @cached_property
    def draft(self) -> Draft:
        """The round by positions. Updates on the host are wanted in the order of the next forward
        or, where gradients must make room, in that; copies out as the strategy says."""
        entries = self.entries
        position = {item.name: at for at, item in enumerate(entries)}
        task = self.strategy.costs.task.name
        rank = list(range(len(entries)))
        scratch = Scratch.of(self.slots)
        for place, k in enumerate(scratch.order):
            rank[position[OpName(task, "s", k, OpKind.UPDATE, 0)]] = place
        shards = range(len(self.strategy.shards))
        loads = (position.get(OpName(task, "s", k, OpKind.PREFETCH, PARAM)) for k in shards)
        norms = position.get(OpName(task, "norm", 0, OpKind.SPILL, 0))
        if norms is not None:
            rank[norms] = 0  # few bytes that all updates on the host wait for
        if self.strategy.urgent:
            again = {(v.role, v.number): v.out.again for v in self.slots.values if v.out}
            for at, item in enumerate(entries):
                if item.stream.lane is Lane.D2H and at != norms:
                    rank[at] = again[next(iter(item.reads)), item.name.number]
        needs = dependencies(entries, {**self.slab.before, **scratch.before})
        return Draft.of(entries, needs, rank, frozenset(at for at in loads if at is not None))

    @cached_property
    def best(self) -> Steady:
        """The shortest steady state of a few orders; loads that it waits for since they are made
        too early are put back."""
        draft = self.draft
        best = shortest(draft, chain(dispatched(draft), [in_order(draft)]))
        for _ in range(_REPAIRS if best[0].period_us > draft.least_us else 0):
            late = best[1].moved.intersection(best[0].cycle)
            other = steady(draft, without(draft, best[1], late)) if late else None
            if other is None or other[0].period_us >= best[0].period_us:
                break
            best = other
        return best

    @property
    def period_us(self) -> int:
        return self.best[0].period_us

    def blame(self) -> dict[int, int]:
        """For every shard µs that compute waits for one of its copies or updates, or that its own
        ops wait; for those with an op on the cycle that makes the period one more."""
        state, orders = self.best
        names = [item.name for item in self.entries]
        shared = {"batch", "norm"}  # of no shard
        found = {names[at].number: 1 for at in state.cycle if names[at].item not in shared}
        us, starts, period = self.draft.us, state.starts, state.period_us
        for stream, queue in orders.queues.items():
            if stream.lane is not Lane.COMPUTE:
                continue
            before = starts[queue[-1]] + us[queue[-1]] - period
            for at in queue:
                wait, before = starts[at] - before, starts[at] + us[at]
                if wait > 0 and orders.needs[at]:
                    cause = max(
                        (starts[dep] + us[dep] - (dep < 0) * period, dep % len(us))
                        for dep in orders.needs[at]
                    )[1]
                    for item, k in {(n.item, n.number) for n in (names[at], names[cause])}:
                        if item not in shared:
                            found[k] = found.get(k, 0) + wait
        return found

    def program(self) -> Program:
        """The timed program that trains the task this way."""
        state, orders = self.best
        return assembled(
            (self.strategy.costs.task.name,),
            [self.memory],
            self.slab.buffers,
            Cycle.dispatched(self.entries, orders, state),
            enter=self.entering(orders.moved),
            leave=self.leaving(),
        )

    @property
    def memory(self) -> Memory:
        """The bytes of the device that the round takes."""
        return Memory(self.slab.bytes, self.strategy.reserve_bytes)

    def entering(self, moved: Collection[int]) -> list[Entry]:
        """Loads of what stays on the device, and for the first round of what rounds load for the
        next one, by the ops at these positions."""
        early = [self.shard_major.early(self.entries[at].name.number) for at in sorted(moved)]
        copies = [*self.shard_major.stays("P"), *early]
        return list(self._emitter(self.links.alone).copies(copies))

    def leaving(self) -> list[Entry]:
        """Copies of what stays on the device back to the host."""
        return list(self._emitter(self.links.alone).copies(self.shard_major.stays("S")))


def lay_out(slots: Slots, links: Links, room: int) -> Slab:
    """A strategy's values in a slab of `room` bytes, or in the smallest found when that is more.

    Lives are stretched by a step first, for all that move; then loads since the link must begin to
    bring them, and values that leave until the link has taken them (`copy_windows`); then loads as
    early as may be, those needed sooner before others.
    """
    values = [value for value in slots.values if value.bytes]
    clock = Clock(slots, links, values)

    def stretch(ledger: Ledger) -> None:
        leave = [ledger.lives[name] for name in clock.leaving]
        come = [ledger.lives[name] for name in clock.coming]
        for life in leave:
            ledger.live(life, life.first, life.last + 1)
        for life in come:
            ledger.live(life, life.first - 1, life.last)
        gone, since = clock.lives
        for life in come:
            ledger.live(life, since[life.value.name], life.last)
        for life in leave:
            ledger.live(life, life.first, gone[life.value.name])
        for life in come:
            ledger.live(life, life.last - slots.count, life.last)

    return stretched(values, slots.count, room, stretch)
