"""What is asked of the planner: tasks, devices and budgets, frozen."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import structs

from profiles.schema import Device, Numerics, Profile, Task

Policy = Literal["gantry", "hydra", "lrtf", "lpt", "random"]
Objective = Literal["makespan", "completion"]


@dataclass(frozen=True)
class Want:
    """When a task may begin, when it has to be done, and its weight in the mean completion."""

    start_us: int = 0
    deadline_us: int | None = None
    weight: int = 1


@dataclass(frozen=True)
class Problem:
    """`devices` equal devices of the profile's first kind, each with `device_bytes` to use.

    taken_bytes: what each has beside that, for copies of all tasks' module buffers.
    wants: of tasks that are to begin or end at some time, by name. segment_steps: most rounds of a
    segment, None for as many as there are. link_groups: devices that share a link, all in groups of
    one size; `device` has its part of the rates then, and `whole_link` all of them.
    """

    tasks: tuple[Task, ...]
    device: Device
    devices: int
    device_bytes: int
    host_bytes: int
    estimated: bool = False  # times from formulas, not from measurements
    numerics: Numerics = field(default_factory=Numerics)
    taken_bytes: int = 0
    objective: Objective = "makespan"
    wants: Mapping[str, Want] = field(default_factory=dict)
    segment_steps: int | None = None
    link_groups: tuple[tuple[int, ...], ...] = ()
    whole_link: Device | None = None

    @property
    def unshared(self) -> Device:
        """A device that has its link for itself, as one does while the others of its group rest."""
        return self.whole_link or self.device

    @property
    def sharers(self) -> int:
        """Devices on one link."""
        return len(self.link_groups[0]) if self.link_groups else 1

    def group_of(self, number: int) -> int | None:
        """The link group of a device."""
        return next((g for g, group in enumerate(self.link_groups) if number in group), None)

    def sharing(self, groups: tuple[tuple[int, ...], ...], part: Device) -> "Problem":
        """The same with devices in groups, each planned as `part` of what it is alone."""
        return replace(self, link_groups=groups, device=part, whole_link=self.unshared)

    @property
    def plain(self) -> bool:
        """Whether nothing but the makespan counts."""
        return self.objective == "makespan" and not self.wants

    @classmethod
    def of(
        cls, profile: Profile, *, devices: int, device_bytes: int | None, host_bytes: int | None
    ) -> "Problem":
        """The profile's tasks on `devices` devices; budgets default to what the profile offers.

        A CUDA device holds copies of the module buffers of all tasks all the time, so there they
        are taken from its budget and not from the reserve of the task that is training.
        """
        device, tasks, taken = profile.machine.devices[0], profile.tasks, 0
        if device.kind == "cuda":
            taken = sum(layer.buffer_bytes for task in tasks for layer in task.layers)
            tasks = tuple(map(_without_buffers, tasks))
        return cls(
            tasks,
            device,
            devices,
            (device_bytes or device.usable_bytes) - taken,
            host_bytes or profile.machine.host.usable_bytes,
            profile.estimated,
            profile.machine.numerics,
            taken,
        )


def _without_buffers(task: Task) -> Task:
    layers = (structs.replace(layer, buffer_bytes=0) for layer in task.layers)
    return structs.replace(task, layers=tuple(layers))


@dataclass(frozen=True)
class Effort:
    """How long the search may take, and the seed of its solver."""

    deadline: float  # time.monotonic()
    seed: int

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()
