"""The face of the other processes of a run, and the facts that they have to know of what one wrote:
how values lie in their bytes, and what gradients and norms lack.

In one process these facts are attributes of a task (`task_state`), found by whoever needs them.
Between processes they go with an X, or with the news that an op has ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from executor.numerics import Grads, Layout
from executor.replay.ops import NOTHING, Work
from executor.replay.task_state import Norming, TaskState
from executor.shards import Absent
from plans.schema import OpName


@dataclass(frozen=True)
class Facts:
    """The facts about the `buffer` that an op has written; absent: the parameters without a
    gradient there. layouts: of the boundary before its shard, or of a batch's inputs and
    targets."""

    op: OpName
    buffer: str
    evaluates: bool = False
    absent: Absent | None = None
    layouts: Sequence[Layout] = ()
    grads: Grads | None = None
    norming: Norming | None = None


def facts_of(work: Work) -> Facts | None:
    """The facts about the buffer that an op has written, if others need some."""
    name, task = work.name, work.task
    if len(work.op.writes) != 1:
        return None
    ((role, buffer),) = work.op.writes.items()
    about = partial(Facts, name, buffer, work.evaluates)
    if role == "norm" or (role == "param" and task.scale):
        return about(norming=task.norming())
    if role in ("grad", "other", "tie"):
        return about(absent=task.absent.of(work.reads.get(role, work.writes.get(role, NOTHING))))
    if name.kind != "X":
        return None
    if name.item in ("batch", "x"):
        return about(layouts=work.feed.contents.of(work.source(role)))
    if name.item == "dx":
        return about(grads=task.gradients.pop((name.number, name.index)))
    return None


def heed(facts: Facts, task: TaskState, find: Callable[[str], Tensor]) -> None:
    """Let `task` go on with what another process wrote; `find` gives a buffer by name."""
    name, feed = facts.op, task.feed(evaluates=facts.evaluates)
    if facts.absent is not None:
        task.absent.note(find(facts.buffer), facts.absent)
    if facts.norming:
        task.go_on(facts.norming)
    if facts.grads is not None:
        task.gradients[name.number, name.index] = facts.grads
    if name.item == "x":
        feed.boundary(name.number, find(facts.buffer), facts.layouts[0])
    elif name.item == "batch":
        feed.contents.note(find(facts.buffer), tuple(facts.layouts))


class News(NamedTuple):
    """Op `number` of a stream has ended `at` a time.perf_counter() of this process, and all
    before it; or, of what an X says, it has begun, and a paced link has moved it at `end`."""

    stream: str
    number: int
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
