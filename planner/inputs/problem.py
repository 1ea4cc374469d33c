"""The planner's question: tasks, devices and budgets, frozen."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from planner.inputs.limits import Limits, default
from planner.inputs.options import Wishes
from plans.additions import Additions
from profiles.lengths import reorder
from profiles.schema import GPU, Device, Disk, Numerics, Profile, Task

Policy = Literal["gantry", "hydra"]


@dataclass(frozen=True)
class Want:
    """When a task may begin, when it has to be done, and its weight in the mean completion."""

    start_us: int = 0
    deadline_us: int | None = None
    weight: int = 1


@dataclass(frozen=True)
class DeviceGroup:
    """`count` equal devices, each with `device_bytes` to use, and the tasks as profiled on them.

    taken_bytes: what each has beside that, for copies of all tasks' module buffers. node: devices
    of each node, where there are several nodes.
    """

    name: str
    tasks: tuple[Task, ...]
    device: Device
    count: int
    device_bytes: int
    taken_bytes: int = 0
    node: int | None = None

    @classmethod
    def of(cls, name: str, profile: Profile, count: int, device_bytes: int | None) -> "DeviceGroup":
        """Devices like the profile's first; the budget defaults to what the profile offers.

        A GPU holds copies of the module buffers of all tasks all the time, so there they
        are taken from its budget and not from the reserve of the task that is training.
        """
        device, tasks, taken = profile.machine.devices[0], profile.tasks, 0
        if device.kind == GPU:
            taken = sum(layer.buffer_bytes for task in tasks for layer in task.layers)
            tasks = tuple(map(_without_buffers, tasks))
        room = (device_bytes or device.usable_bytes) - taken
        return cls(name, tasks, device, count, room, taken)

    def holds(self, devices: int) -> bool:
        """True if a task can be on so many at once: of one node, or on whole nodes."""
        whole = self.node is None or devices <= self.node or devices % self.node == 0
        return devices <= self.count and whole


@dataclass(frozen=True)
class Problem(Wishes):
    """The same tasks on devices of one kind, or of several; devices are numbered kind by kind.

    wants: of tasks that are to begin or end at some time, by name. disk: where tasks wait that the
    host has no room for, if anywhere. done: steps of tasks that were trained before, by name.
    microbatch: the size of theirs then; additions: of those that must keep it, the order in which
    several devices added these. inputs: the sha256 of the files it was read from, by role.
    provenance: of the plan. lengths: of the samples of tasks where they have some, in their order;
    orders: the numbers of the samples, of tasks where that is not their own.
    """

    kinds: tuple[DeviceGroup, ...]
    host_bytes: int
    estimated: bool = False  # times from formulas, not from measurements
    numerics: Numerics = field(default_factory=Numerics)
    wants: Mapping[str, Want] = field(default_factory=dict)
    disk: Disk | None = None
    done: Mapping[str, int] = field(default_factory=dict)
    microbatch: Mapping[str, int] = field(default_factory=dict)
    additions: Mapping[str, Additions] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, NDArray[np.uint32]] = field(default_factory=dict, compare=False)
    orders: Mapping[str, NDArray[np.uint32]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, profile: Profile, *, devices: int, device_bytes: int | None, host_bytes: int | None
    ) -> "Problem":
        """The profile's tasks on `devices` devices; budgets default to what the profile offers."""
        kind = DeviceGroup.of(profile.machine.devices[0].kind, profile, devices, device_bytes)
        machine = profile.machine
        room = host_bytes or machine.host.usable_bytes
        estimated, numerics = profile.estimated, machine.numerics
        return cls((kind,), room, estimated, numerics, disk=machine.host.disk)

    @property
    def only(self) -> DeviceGroup:
        """The kind of all devices; ValueError where there are several."""
        (kind,) = self.kinds
        return kind

    def reordered(self) -> "Problem":
        """The same with samples in the order that is asked for. It is the same for what is left of
        a task, and does not reach beyond its last step."""
        orders = {}
        for task in self.tasks if self.reorder_window > 1 else ():
            if task.lengths and task.name in self.lengths:
                own, steps = self.lengths[task.name], self.done.get(task.name, 0) + task.steps
                order = np.arange(len(own), dtype=np.uint32)
                trained = own[: steps * task.batch]
                order[: len(trained)] = reorder(trained, task.batch, self.reorder_window)
                orders[task.name] = order
        moved = {name: self.lengths[name][order] for name, order in orders.items()}
        return replace(self, lengths={**self.lengths, **moved}, orders=orders)

    def alike(self, **changes: Any) -> "Problem":
        """The same with other values of its only kind."""
        return replace(self, kinds=(replace(self.only, **changes),))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """As profiled on the first kind; names, steps and bytes are those of every kind."""
        return self.kinds[0].tasks

    @property
    def device(self) -> Device:
        return self.only.device

    @property
    def device_bytes(self) -> int:
        return self.only.device_bytes

    @property
    def devices(self) -> int:
        """The number of devices, of all kinds."""
        return sum(kind.count for kind in self.kinds)

    @property
    def gangs(self) -> bool:
        """True if a task may be on several devices."""
        if self.layout:
            return self.layout.devices > 1
        return any(kind.count > 1 for kind in self.kinds)

    @property
    def kind_of(self) -> tuple[int, ...]:
        """For every device the place of its kind among the kinds."""
        return tuple(at for at, kind in enumerate(self.kinds) for _ in range(kind.count))

    def node_of(self, number: int) -> int:
        """The node of a device."""
        node = self.kinds[0].node
        return number // node if node else 0

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.node_of(self.devices - 1) + 1

    @property
    def evaluated(self) -> bool:
        """True if some task is evaluated."""
        return any(task.evaluation for task in self.tasks)


def _without_buffers(task: Task) -> Task:
    layers = (structs.replace(layer, buffer_bytes=0) for layer in task.layers)
    return structs.replace(task, layers=tuple(layers))


@dataclass(frozen=True)
class Effort:
    """The deadline of the search, the seed of its solver, and its other limits."""

    deadline: float  # time.monotonic()
    seed: int
    limits: Limits = field(default_factory=default)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()
