"""A plan as one of the processes that replay it sees it. Each of them has all of the plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from plans.order import first_steps, held
from plans.schema import Device, Plan, Segment, Task


@dataclass(frozen=True, eq=False)
class Part:
    """The devices, tasks and shards of process `me`, where process ranks[d] has device d of the
    plan. Each process has some device, those of a node are in a row."""

    plan: Plan
    ranks: Sequence[int]
    me: int = 0

    @classmethod
    def whole(cls, plan: Plan) -> "Part":
        """All of a plan for one process."""
        return cls(plan, [0] * len(plan.devices))

    @cached_property
    def devices(self) -> dict[int, Device]:
        """Its own, by number."""
        both = zip(self.plan.devices, self.ranks, strict=True)
        return {number: one for number, (one, rank) in enumerate(both) if rank == self.me}

    @cached_property
    def kind(self) -> str:
        """The kind of its devices."""
        return next(iter(self.devices.values())).kind

    @cached_property
    def node(self) -> int:
        """The node of its devices."""
        return next(iter(self.devices.values())).node

    @cached_property
    def node_devices(self) -> list[int]:
        """The numbers of all devices of its node."""
        return [n for n, device in enumerate(self.plan.devices) if device.node == self.node]

    @cached_property
    def firsts(self) -> dict[int, int]:
        """The first process of each node, by node."""
        found: dict[int, int] = {}
        for device, rank in zip(self.plan.devices, self.ranks, strict=True):
            found[device.node] = min(rank, found.get(device.node, rank))
        return dict(sorted(found.items()))

    @cached_property
    def nodes(self) -> list[int]:
        """The node of each process."""
        known = {rank: d.node for d, rank in zip(self.plan.devices, self.ranks, strict=True)}
        return [known[rank] for rank in sorted(known)]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Process 0, which leads, has all tasks; the first process of a node those whose state its
        store ever has; the others those that they train."""
        if self.me == 0:
            return self.plan.tasks
        own = filter(self.runs, self.plan.segments)
        names = {name for segment in own for name in self.plan.trained(segment)}
        if self.firsts[self.node] == self.me:
            names |= self.held.keys()
        return tuple(task for task in self.plan.tasks if task.name in names)

    @cached_property
    def held(self) -> dict[str, list[int]]:
        """The shards that the store of its node ever keeps, by task."""
        found: dict[str, list[int]] = {}
        for name, number in sorted(held(self.plan)[self.node]):
            found.setdefault(name, []).append(number)
        return found

    @cached_property
    def slabs(self) -> dict[int, int]:
        """Bytes of the slab of each of its devices: the largest of the programs that run there."""
        found = dict.fromkeys(self.devices, 0)
        for segment in self.plan.segments:
            memory = self.plan.program(segment.program).memory
            for number, one in zip(segment.devices, memory, strict=True):
                if number in found:
                    found[number] = max(found[number], one.slab_bytes)
        return found

    @cached_property
    def steps(self) -> list[dict[str, int]]:
        """For each segment of the plan, the step of each of its tasks that its round 0 trains."""
        return first_steps(self.plan)

    def owners(self, segment: Segment) -> tuple[int, ...]:
        """The processes of a segment's devices."""
        return tuple(self.ranks[number] for number in segment.devices)

    def runs(self, segment: Segment) -> bool:
        """True if the process has a device of this segment."""
        return self.me in self.owners(segment)
