"""What is asked of the planner: tasks, devices and budgets, frozen."""

import time
from dataclasses import dataclass, field
from typing import Literal

from msgspec import structs

from profiles.schema import Device, Numerics, Profile, Task

Policy = Literal["gantry", "hydra"]


@dataclass(frozen=True)
class Problem:
    """`devices` equal devices of the profile's first kind, each with `device_bytes` to use.

    taken_bytes: what each has beside that, for copies of all tasks' module buffers.
    """

    tasks: tuple[Task, ...]
    device: Device
    devices: int
    device_bytes: int
    host_bytes: int
    estimated: bool = False  # times from formulas, not from measurements
    numerics: Numerics = field(default_factory=Numerics)
    taken_bytes: int = 0

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
