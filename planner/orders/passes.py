"""A pipeline as orders see it, and what an order is: each device's passes of one round, in turn.

Times are whole numbers of one unit (plans use µs), memory whole numbers of another (plans use
bytes). A pass is one microbatch through one shard:

    F   forward                         after F of the shard before
    B   backward                        after B (or I) of the shard behind; the last one's after F
    I   gradients of the input          as B: what the shard before waits for
    W   gradients of the weights        after I, any time later

A backward is B, or I and then W. Where two passes that follow each other are on different devices,
the second waits `hop` longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from planner.errors import Infeasible
from profiles.units import exact_bytes

PassKind = Literal["F", "B", "I", "W"]


class Pass(NamedTuple):
    """A microbatch of a shard, in one direction."""

    kind: PassKind
    shard: int
    microbatch: int


Order = tuple[tuple[Pass, ...], ...]
"""For every device its passes in turn. A microbatch of a shard has all its passes on one device."""


class Cost(NamedTuple):
    """A shard's times and memory for one microbatch.

    input, weight: the two parts of its backward; B takes their sum. held: memory from the begin of
    F to the end of B, or of I. left: what remains of it from there to the end of W.
    hop: added where its input comes from another device, and where that one gets its gradient.
    forward: 0 for a last shard whose forward is part of its backward, which then has no F.
    """

    forward: int
    input: int
    weight: int
    held: int = 0
    left: int = 0
    hop: int = 0

    @property
    def backward(self) -> int:
        return self.input + self.weight

    def of(self, kind: PassKind) -> int:
        """The time of a pass."""
        return {"F": self.forward, "B": self.backward, "I": self.input, "W": self.weight}[kind]


@dataclass(frozen=True)
class Pipeline:
    """A task to be trained on several devices.

    costs: by device and shard, for devices of one kind the same. limits: the memory that each
    device has for what passes hold; None where it does not matter.
    """

    costs: tuple[tuple[Cost, ...], ...]
    microbatches: int
    limits: tuple[int, ...] | None = None

    @classmethod
    def alike(
        cls, costs: Sequence[Cost], devices: int, microbatches: int, limit: int | None = None
    ) -> "Pipeline":
        """On devices of one kind."""
        limits = None if limit is None else (limit,) * devices
        return cls((tuple(costs),) * devices, microbatches, limits)

    @property
    def devices(self) -> int:
        return len(self.costs)

    @property
    def shards(self) -> int:
        return len(self.costs[0])

    def has_forward(self, shard: int) -> bool:
        """False for a last shard whose forward is part of its backward."""
        return shard < self.shards - 1 or self._ends_forward

    @cached_property
    def _ends_forward(self) -> bool:
        """True if some device has a forward of the last shard."""
        return any(costs[-1].forward for costs in self.costs)

    def lacking(self, device: int, held: int) -> Infeasible:
        """The error for a device that has no memory for what one microbatch holds there."""
        limit = self.limits[device] if self.limits else 0
        return Infeasible(
            f"one microbatch holds {exact_bytes(held)} on device {device}, which has "
            f"{exact_bytes(limit)} for what passes hold; use smaller microbatches, more memory "
            "or more devices",
            smallest=held,
        )


Places = tuple[tuple[int, ...], ...]
"""The devices that have each shard, ascending by stage; several have replicas of it."""


def share(microbatches: int, replicas: Sequence[int]) -> list[int]:
    """The device of every microbatch, shared out in turn to a shard's replicas."""
    return [replicas[m % len(replicas)] for m in range(microbatches)]
