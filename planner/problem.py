"""What is asked of the planner: tasks, devices and budgets, frozen."""

import time
from dataclasses import dataclass
from typing import Literal

from profiles.schema import Device, Profile, Task

Policy = Literal["gantry", "hydra"]


@dataclass(frozen=True)
class Problem:
    """`devices` equal devices of the profile's first kind, each with `device_bytes` to use."""

    tasks: tuple[Task, ...]
    device: Device
    devices: int
    device_bytes: int
    host_bytes: int
    estimated: bool = False  # times from formulas, not from measurements

    @classmethod
    def of(
        cls, profile: Profile, *, devices: int, device_bytes: int | None, host_bytes: int | None
    ) -> "Problem":
        """The profile's tasks on `devices` devices; budgets default to what the profile offers."""
        device = profile.machine.devices[0]
        return cls(
            profile.tasks,
            device,
            devices,
            device_bytes or device.usable_bytes,
            host_bytes or profile.machine.host.usable_bytes,
            profile.estimated,
        )


@dataclass(frozen=True)
class Effort:
    """How long the search may take, and the seed of its solver."""

    deadline: float  # time.monotonic()
    seed: int

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()
