"""Messages between the processes of a run: typed, so that nothing from elsewhere is executed."""

from collections.abc import Sequence

import msgspec

from executor.conducting import Pace
from executor.distributed.values import Parcel
from plans.order import Reached


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Anything that one process says to another."""


class Gone(Message, frozen=True):
    """A process is gone: what its connection says last, no message that is sent."""

    text: str


class Welcome(Message, frozen=True):
    """The run begins. reached: where an earlier start of the run was kept that it goes on from."""

    reached: Reached | None


class Store(Message, frozen=True):
    """The path of the node's host store."""

    path: str


class Mapped(Message, frozen=True):
    """The process has mapped it."""


class Ready(Message, frozen=True):
    """The process has its devices and models, and then connections and memory. `trouble`: it could
    not; code: of such a failure."""

    trouble: str = ""
    code: int = 0


class Join(Message, frozen=True):
    """All processes are ready: connect devices, and then begin."""


class Begin(Message, frozen=True):
    """Replay your part of a segment; `states`: what it has to know of its tasks. origin: when the
    run began, by the clock of process 0."""

    segment: int
    metered: bool
    origin: float
    states: Sequence[Parcel]


class Stop(Message, frozen=True):
    """Let a segment's threads stop before their next op."""

    segment: int


class Freeze(Message, frozen=True):
    """Begin no round of a segment until the number of its rounds is said."""

    segment: int


class Frozen(Message, frozen=True):
    """So many rounds have begun here."""

    segment: int
    begun: int


class Finish(Message, frozen=True):
    """End a segment after so many rounds."""

    segment: int
    rounds: int


class Ended(Message, frozen=True):
    """A process' part of a segment has ended. peaks: most bytes used and late allocations of its
    devices."""

    segment: int
    stopped: bool
    states: Sequence[Parcel]
    peaks: dict[int, tuple[int, int]]


class Progress(Message, frozen=True):
    """Ops of these segments have ended. paces: of this process' devices since the last word."""

    segments: Sequence[int]
    paces: dict[int, Pace]


class LossPart(Message, frozen=True):
    """A part of a step's loss. total: what its batch counts, see `workload.Share`; metrics: of its
    samples."""

    task: str
    evaluates: bool
    step: int
    part: int
    value: float
    total: float
    metrics: Sequence[Sequence[float]]


class Failed(Message, frozen=True):
    """Something went wrong, see `replay.Failure`."""

    tasks: Sequence[str]
    text: str
    op: str
    stream: str
    round: int
    step: int | None
    fatal: bool


class Carry(Message, frozen=True):
    """Send some shards of a task from your node's store to node 0."""

    task: str
    shards: Sequence[int]


class Ask(Message, frozen=True):
    """Say what a segment's threads are doing."""

    segment: int


class States(Message, frozen=True):
    """A line for each op that a segment's threads run or wait for."""

    segment: int
    lines: Sequence[str]


class Bye(Message, frozen=True):
    """The run is over: end with this exit code."""

    code: int


AnyMessage = (
    Welcome
    | Store
    | Mapped
    | Carry
    | Ready
    | Join
    | Begin
    | Stop
    | Freeze
    | Frozen
    | Finish
    | Ended
    | Progress
    | LossPart
    | Failed
    | Ask
    | States
    | Bye
)
