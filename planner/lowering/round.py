"""From a strategy to its program: ops, slabs of all devices, streams in order, times.

One device, all microbatches of a shard in turn:

    compute   F0 F1 .. FK-2 | BK-1 .. B1 B0
    h2d       P P P ...        P  P  P          what is not on the device when it is needed
    d2h                        S  S  S          gradients and whatever else leaves
    host                          U  U  U       updates; the next round's P waits (@-1)

Several, microbatch by microbatch:

    0.compute   F0 F0 F0       B0 F0 B0       B0 U0
    0.p2p          X  X  X
    1.compute         B1 B1 B1 U1
    1.p2p                X  X  X

What stays on a device is loaded by `enter`, updated there, and written back by `leave`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from planner.lowering.host_bytes import Scratch
from planner.lowering.link_windows import Clock
from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import turns
from planner.lowering.walk import Walk, walked
from planner.rounds import (
    FAR,
    Copy,
    Cycle,
    Draft,
    Emitter,
    Entry,
    Longer,
    Orders,
    Slab,
    Steady,
    assembled,
    dependencies,
    dispatched,
    in_order,
    queued,
    shortest,
    steady,
    stretched,
    without,
)
from planner.shards import SCALARS_BYTES, Links, Strategy, Value
from plans.ops import Lane, OpKind, Stream
from plans.schema import Memory, Program

_REPAIRS = 3  # times that loads made too early are put back
_FURTHER = 1, 1, 2, 4, 8, 16  # turns that values live longer on each side, one after the other


S = TypeVar("S", Strategy, PipelineStrategy)


@dataclass(frozen=True, eq=False)
class Round(Generic[S]):
    """A strategy laid out in the slabs of its devices.

    room: the bytes that a device may need for longer lives, 0 for none.
    """

    strategy: S
    links: Links
    room: int = 0

    @cached_property
    def walk(self) -> Walk:
        own = self.strategy
        if isinstance(own, Strategy):
            return walked(own)
        return Walk(own, turns(own, self.links), self.links.node)

    @cached_property
    def slabs(self) -> list[Slab]:
        """The slab of every device."""
        walk, rooms = self.walk, [self.room - reserve for reserve in self.reserves]
        if not self.strategy.stretches:
            each = zip(walk.values, walk.lives.count, rooms, strict=True)
            return [spread(values, max(1, count), room) for values, count, room in each]
        pairs = zip(walk.us(self.links), walk.values, strict=True)
        clocks = (Clock(self.strategy, us, self.links, values) for us, values in pairs)
        return [lay_out(clock, room) for clock, room in zip(clocks, rooms, strict=True)]

    @cached_property
    def memory(self) -> list[Memory]:
        """The bytes that the round takes of every device."""
        own, reserves = self.strategy, self.reserves
        if isinstance(own, PipelineStrategy) and self.draft.free:
            reserves = self._reserves(own, self.best[1].queues)
        pairs = zip(self.slabs, reserves, strict=True)
        return [Memory(slab.bytes, reserve) for slab, reserve in pairs]

    @property
    def device_bytes(self) -> int:
        """The most that any device needs."""
        return max(one.bytes for one in self.memory)

    @cached_property
    def entries(self) -> list[Entry]:
        """The ops in the order of their meaning."""
        own = self.strategy
        emitter = Emitter(own, self.links, each=own.costs_each)
        return list(emitter.entries(self.walk.visits))

    @cached_property
    def draft(self) -> Draft:
        """The round by positions; on one device loads may serve the next round."""
        entries, scratch = self.entries, Scratch(self.strategy, self.walk)
        before = {buffer: others for slab in self.slabs for buffer, others in slab.before.items()}
        needs = dependencies(entries, {**before, **scratch.before})
        loads: dict[int, int] = {}  # by shard the first of its parameters
        for at, item in enumerate(entries) if self.strategy.stretches else ():
            if item.name.kind is OpKind.PREFETCH and "param" in item.writes:
                loads.setdefault(item.name.number, at)
        movable = frozenset(loads.values())
        return Draft.of(entries, needs, self._rank(scratch.order), movable, self._free)

    @property
    def _free(self) -> frozenset[int]:
        """Where there are replicas, R, N and U on devices: passes do not wait with them for what
        comes from another device."""
        return frozenset(
            at
            for at, item in enumerate(self.entries if any(self.strategy.added) else ())
            if item.stream.lane is Lane.COMPUTE and item.name.kind in "RNU"
        )

    def _rank(self, order: Sequence[int]) -> list[int]:
        """Copies are wanted in the order of meaning; updates on the host in the order of the next
        forward or, where gradients must make room, in that; copies out as the strategy says; new
        parameters go to other devices behind all else, those that are needed first before others.
        """
        entries, rank = self.entries, list(range(len(self.entries)))
        place, norms = {k: place for place, k in enumerate(order)}, None
        for at, item in enumerate(entries):
            name = item.name
            if name.kind is OpKind.UPDATE:
                rank[at] = place.get(name.number, at)
            elif item.stream.lane is Lane.P2P and "param" in item.writes:
                rank[at] = len(rank) + name.number
            elif name.item == "norm" and name.kind is OpKind.SPILL and not name.index:
                norms, rank[at] = at, 0  # few bytes that all updates on the host wait for
        if self.strategy.urgent:
            again = {(v.role, v.number): v.out.again for v in self.walk.values[0] if v.out}
            for at, item in enumerate(entries):
                if item.stream.lane is Lane.D2H and at != norms:
                    rank[at] = again[next(iter(item.reads)), item.name.number]
        return rank

    @cached_property
    def best(self) -> Steady:
        """The shortest steady state of a few orders; loads that it waits for since they are made
        too early are put back."""
        draft = self.draft
        best = shortest(draft, self._orders())
        for _ in range(_REPAIRS if best[0].period_us > draft.least_us else 0):
            late = best[1].moved.intersection(best[0].cycle)
            other = steady(draft, without(draft, best[1], late)) if late else None
            if other is None or other[0].period_us >= best[0].period_us:
                break
            best = other
        return best

    def _orders(self) -> Iterator[Orders]:
        if not self.strategy.stretches:
            yield in_order(self.draft)  # mostly as good, and found sooner
        yield from dispatched(self.draft)
        if self.strategy.stretches:
            yield in_order(self.draft)

    @property
    def period_us(self) -> int:
        return self.best[0].period_us

    def program(self, cycle: Cycle | None = None) -> Program:
        """The timed program that trains the task this way. cycle: its rounds, with other times."""
        state, orders = self.best
        own, stays = self.strategy, self.walk.stays
        emitter = Emitter(own, self.links.alone, self.entries)
        comes = list(stays.comes(self.links))
        for at in sorted(orders.moved):  # rounds load these for the next one
            (_, name), k = next(iter(self.entries[at].writes.items())), self.entries[at].name.number
            device = self.entries[at].stream.device
            comes.append(Copy.of(own.shards[k], k, "P", device, "param", name.split("/")[1]))
        return assembled(
            (own.costs.task.name,),
            self.memory,
            tuple(buffer for slab in self.slabs for buffer in slab.buffers),
            cycle or Cycle(self.entries, orders, state),
            enter=list(emitter.copies(comes)),
            leave=list(emitter.copies(stays.goes())),
            evaluates=own.evaluates,
        )

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

    @cached_property
    def reserves(self) -> list[int]:
        """Bytes outside each slab: the layers' own buffers, live graphs, and what any op takes."""
        own = self.strategy
        if isinstance(own, Strategy):
            return [own.reserve_bytes]
        return self._reserves(own, queued(self.entries))

    def _reserves(self, own: PipelineStrategy, queues: Mapping[Stream, Sequence[int]]) -> list[int]:
        """The same of several devices, with streams in these orders."""
        found = list[int]()
        for device in range(own.devices):
            queue = queues.get(Stream(device, Lane.COMPUTE), [])
            buffers = sum(
                own.costs.total("buffer", shard.first, shard.end)
                for shard, devices in zip(own.shards, own.replicas, strict=True)
                if device in devices
            )
            most = self._most([self.entries[at] for at in queue])
            found.append(most + buffers + SCALARS_BYTES)
        return found

    def _most(self, entries: Sequence[Entry]) -> int:
        """The most that graphs and an op take together; a graph lives until its backward ends."""
        live, most, alive = 0, 0, dict[tuple[int, int], int]()
        for entry in entries:
            most = max(most, live + entry.transient_bytes)
            kind, k, m = entry.name.kind, entry.name.number, entry.name.index
            key = k, m
            live -= alive.pop(key, 0) if kind in "BIW" else 0
            if kind == "I":
                alive[key] = self.strategy.cost(k, m).left_bytes or 0
            elif kind == "F" and self.strategy.modes[k].activations == "saved":
                alive[key] = self.strategy.cost(k, m).saved_bytes
            live += alive[key] if kind in "FI" and key in alive else 0
        return most


DeviceRound = Round[Strategy]
"""On one device."""

PipelineRound = Round[PipelineStrategy]
"""On several."""


def spread(values: Sequence[Value], count: int, room: int) -> Slab:
    """The values of a device that live as its turns say, in a slab of `room` bytes, or in a small
    one where that is more.

    While there is room they have their bytes before and after that, further and further, so that
    copies wait for no other value's end."""
    moving = [value.name for value in values if value.last - value.first + 1 < count]

    def wishes() -> Iterator[Longer]:
        for by in _FURTHER:
            yield from (Longer(name, later=by) for name in moving)
            yield from (Longer(name, earlier=by) for name in moving)

    return stretched(values, count, room, wishes)


def lay_out(clock: Clock, room: int) -> Slab:
    """The values of a device in a slab of `room` bytes, or in the smallest found when that is more.

    Lives are stretched by a step first, for all that move; then loads since the link must begin to
    bring them, and values that leave until the link has taken them (`link_windows`); then loads as
    early as may be, those needed sooner before others.
    """

    def wishes() -> Iterator[Longer]:
        gone, since = clock.lives
        yield from (Longer(name, later=1) for name in clock.leaving)
        yield from (Longer(name, earlier=1) for name in clock.coming)
        yield from (Longer(name, earlier=FAR, since=since[name]) for name in clock.coming)
        yield from (Longer(name, later=FAR, until=gone[name]) for name in clock.leaving)
        yield from (Longer(name, earlier=FAR) for name in clock.coming)

    return stretched(clock.values, clock.count, room, wishes)
