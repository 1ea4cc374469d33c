"""The other processes of a run, as one of them sees them, and what they tell each other.

News say that an op has ended, or that an X has begun. Facts are what others have to know of the
bytes that one wrote: how values lie in them, and what gradients and norms lack. In one process
these are attributes of a task (`task_state`), found by whoever needs them; between processes they
go with an X, or with the news that an op has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from executor.numerics import Grads
from executor.replay.task_state import Norming
from executor.shards import Absent
from executor.workload import Content
from plans.ops import OpName


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


class News(NamedTuple):
    """A round of an op has ended `at` a time.perf_counter() of this process; or, of what an X says,
    it has begun, and a paced link has moved it at `end`."""

    phase: str
    op: str
    round: int
    at: float
    end: float | None = None
    facts: tuple[Facts, ...] = ()


class Wire(Protocol):
    """A connection from one device to another one, which keeps the order."""

    def send(self, source: Tensor, segment: int) -> None:
        """Launch the bytes (uint8) into the current stream; the other side receives as many in the
        same segment."""

    def receive(self, target: Tensor, segment: int) -> Callable[[], object]:
        """Be ready for what the other side sends; to be called when it has begun, to launch the
        bytes into the current stream."""


class Team(Protocol):
    """The processes of a run, by rank; `me` is this one's. Each has some of the plan's devices."""

    me: int

    def rank(self, device: int) -> int:
        """The process that has a device of the plan."""

    def tell(self, rank: int, segment: int, news: News) -> None:
        """Send news of a segment to a process, in order; from any thread."""

    def listen(self, segment: int, heard: Callable[[News], None]) -> None:
        """Hand on the news of a segment, also those that have come before, from any thread."""

    def wire(self, source: int, target: int) -> Wire:
        """The wire from a device of the plan to another one, of which one is this process'."""
