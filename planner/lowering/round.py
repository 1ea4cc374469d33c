"""From a pipeline strategy to its program: ops, slabs of all devices, streams in order, times.

0.compute   F0 F0 F0       B0 F0 B0       B0 U0
0.p2p          X  X  X
1.compute         B1 B1 B1 U1
1.p2p                X  X  X
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from planner.lowering.strategy import PipelineStrategy
from planner.lowering.walk import Walk
from planner.rounds import (
    Cycle,
    Draft,
    Emitter,
    Entry,
    Life,
    Slab,
    Steady,
    assembled,
    dependencies,
    dispatched,
    in_order,
    queued,
    shortest,
)
from planner.shards import SCALARS_BYTES, Links
from plans.ops import Lane, Stream
from plans.schema import Memory, Program


@dataclass(frozen=True, eq=False)
class PipelineRound:
    """A strategy laid out in the slabs of its devices."""

    strategy: PipelineStrategy
    links: Links

    @cached_property
    def walk(self) -> Walk:
        return Walk(self.strategy, self.links)

    @cached_property
    def slabs(self) -> list[Slab]:
        """The slab of every device."""
        pairs = zip(self.walk.values(), self.walk.stays.count, strict=True)
        return [Slab(map(Life.of, values), max(1, turns)) for values, turns in pairs]

    @cached_property
    def entries(self) -> list[Entry]:
        """The ops in the order of their meaning."""
        own = self.strategy
        emitter = Emitter(
            own.costs, own.shards, own.modes, self.links, each=own.sized if own.each else ()
        )
        return list(emitter.entries(self.walk.visits))

    @cached_property
    def memory(self) -> list[Memory]:
        """The bytes that the round takes of every device."""
        return [
            Memory(slab.bytes, reserve)
            for slab, reserve in zip(self.slabs, self._reserves(), strict=True)
        ]

    @property
    def device_bytes(self) -> int:
        """The most that any device needs."""
        return max(one.slab_bytes + one.reserve_bytes for one in self.memory)

    def _reserves(self) -> Iterator[int]:
        """Bytes outside each slab: the layers' own buffers, live graphs, and what any op takes."""
        queues = queued(self.entries)
        for device in range(self.strategy.devices):
            queue = queues.get(Stream(device, Lane.COMPUTE), [])
            buffers = sum(
                self.strategy.costs.total("buffer", shard.first, shard.end)
                for shard, devices in zip(self.strategy.shards, self.strategy.replicas, strict=True)
                if device in devices
            )
            yield self._most([self.entries[at] for at in queue]) + buffers + SCALARS_BYTES

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

    @cached_property
    def draft(self) -> Draft:
        """The round by positions; copies are wanted in the order of meaning."""
        before = {b: others for slab in self.slabs for b, others in slab.before.items()}
        return Draft.of(self.entries, dependencies(self.entries, before))

    @cached_property
    def best(self) -> Steady:
        """The shortest steady state of a few orders of the copies."""
        return shortest(self.draft, chain([in_order(self.draft)], dispatched(self.draft)))

    @property
    def period_us(self) -> int:
        return self.best[0].period_us

    def program(self, cycle: Cycle | None = None) -> Program:
        """The timed program that trains the task this way. cycle: its rounds, with other times."""
        state, orders = self.best
        own, stays = self.strategy, self.walk.stays
        emitter = Emitter(own.costs, own.shards, own.modes, self.links.alone, self.entries)
        return assembled(
            (own.costs.task.name,),
            self.memory,
            tuple(buffer for slab in self.slabs for buffer in slab.buffers),
            cycle or Cycle.dispatched(self.entries, orders, state),
            enter=[e for device, copy in stays.comes() for e in emitter.copies([copy], device)],
            leave=[e for device, copy in stays.goes() for e in emitter.copies([copy], device)],
        )
