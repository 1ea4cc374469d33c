"""The other processes of a run, as one of them sees them, and what they tell each other.

Signals say that an op has ended, or that an X has begun. Facts are what others have to know of the
bytes that one wrote: how values lie in them, and what gradients and norms lack. In one process
these are attributes of a task (`task_state`), found by whoever needs them; between processes they
go with an X, or lie beside the host buffer that they are about.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from executor.numerics import Grads
from executor.replay.task_state import Norming
from executor.shards import Absent
from executor.workload import Content
from plans.ops import OpName

Key = tuple[str, str]  # phase and op


@dataclass(frozen=True)
class Facts:
    """The facts about the `buffer` that an op has written; absent: the parameters without a
    gradient there. content: the boundary before its shard, or a batch's inputs and targets."""

    op: OpName
    buffer: str
    evaluates: bool = False
    absent: Absent | None = None
    content: Content | None = None
    grads: Grads | None = None
    norming: Norming | None = None


class Signal(Protocol):
    """A count of rounds that one process tells and others wait for: of an op, or of a side of an
    X."""

    def tell(self, number: int, at: float, facts: Facts | None = None) -> None:
        """Round `number` is over, at a time of time.perf_counter(), and left these facts."""

    def told(self, number: int, check: Callable[[], None]) -> tuple[float, Facts | None]:
        """When round `number` was over, once it is, and the facts that it left; `check` may raise
        to end the wait."""

    def cancel(self) -> None:
        """There will be no further rounds: nobody is to wait where `check` is not called."""


class Tag(Protocol):
    """The facts about a buffer of the host store that several processes use."""

    def write(self, facts: Facts | None) -> None: ...

    def read(self) -> Facts | None: ...


class Wire(Protocol):
    """A connection from one device to another one, which keeps the order."""

    @property
    def early(self) -> bool:
        """True if a receiver may ask for bytes before they are sent."""

    def send(self, source: Tensor, segment: int) -> None:
        """Launch the bytes (uint8) into the current stream; the other side receives as many in the
        same segment."""

    def receive(self, target: Tensor, segment: int) -> Callable[[], object]:
        """Be ready for what the other side sends; to be called when it has begun, to launch the
        bytes into the current stream."""


class Team(Protocol):
    """The processes of a run, by rank; `me` is this one's. Each has some of the plan's devices."""

    me: int

    def signal(self, segment: int, number: int, other: int, room: int | None) -> Signal:
        """A signal of a segment, which process `other` tells or waits for. room: the device that
        sends what facts come with it."""

    def tag(self, buffer: str) -> Tag:
        """The facts about a buffer of the host store."""

    def wire(self, source: int, target: int) -> Wire:
        """The wire from a device of the plan to another one, of which one is this process'."""
