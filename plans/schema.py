"""The plan format: a complete static timetable. docs/plan.md says what it means.

Integers only. Order within a stream and the `after` edges bind; times are predictions.
"""

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Literal

import msgspec

from plans.ops import OpName, Stream, parse_id, parse_stream
from plans.prediction import Prediction, Solver
from plans.ties import Crossing, crossing, homes
from profiles.schema import (
    LONGEST_NAME,
    UNKNOWN,
    Count,
    Cut,
    DeviceKind,
    Emulation,
    Evaluation,
    Label,
    Name,
    Numerics,
    Parts,
    Positive,
    Precision,
    Sha256,
    Struct,
    Threads,
    Workload,
)

VERSION = 1

Role = Literal[
    "param",
    "base",
    "state",
    "grad",
    "batch",
    "x",
    "y",
    "dx",
    "dy",
    "other",
    "saved",
    "norm",
    "tied",
    "tie",
]
OpId = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_-]+\.(s\d+|base\d+|batch|norm|x\d+|dx\d+|a\d+|tie\d+)\.[FBIWUPSXRN]\d+$",
        max_length=LONGEST_NAME,
    ),
]
StreamName = Annotated[str, msgspec.Meta(pattern=r"^(\d+\.(compute|h2d|d2h|p2p)|host\.\d+)$")]
Space = Annotated[str, msgspec.Meta(pattern=r"^(host|\d+)$")]


class Buffer(Struct, frozen=True):
    """A byte range of a device's slab (space "0", "1", ...) or of the host store ("host")."""

    name: Label
    space: Space
    offset: Count
    bytes: Positive


class Op(Struct, frozen=True):
    """One timed entry. `reads` and `writes` map a role to the buffer that plays it."""

    id: OpId
    stream: StreamName
    start_us: int
    end_us: int
    after: tuple[str, ...] = ()
    reads: dict[Role, str] = {}
    writes: dict[Role, str] = {}
    transient_bytes: Count = 0

    @property
    def us(self) -> int:
        """The time that it takes."""
        return self.end_us - self.start_us

    @property
    def name(self) -> OpName:
        """The id taken apart; ValueError where it is none."""
        return parse_id(self.id)

    @property
    def queue(self) -> Stream:
        """The stream taken apart; ValueError where it is none."""
        return parse_stream(self.stream)


Activations = Literal["recompute", "saved", "offload"]


class Shard(Struct, frozen=True):
    """Layers first_layer .. end_layer-1, moved and run as one.

    resident: its parameters stay on the device from round to round.
    activations: what happens between its forward and its backward. "recompute": nothing but the
    boundary is kept. "saved": the graph stays, `saved_bytes` per microbatch, in the reserve.
    "offload": what backward needs is packed into a buffer of `saved_bytes` (role "saved") that
    may go to the host and back. recomputed: microbatches of an offloading shard that pack nothing
    but are recomputed, ascending.
    update: on the host; on the device with state that stays there; or on the device with state
    that comes and goes.
    in_bytes is the boundary before the shard for one microbatch (0 for the first shard);
    rng_draws the 32-bit draws of one forward of one microbatch, None when that is not constant.
    cast: the host store keeps no bf16 parameters of the shard; prefetches make them from the fp32
    masters, which begin its state.
    left_bytes: what is alive of a microbatch's graph, with gradients kept for it, from the end of
    its I to the end of its W.
    base_bytes: of parameters that nothing trains, which lie in a buffer of their own, the role
    "base", for all tasks of the same base; `param_bytes` are those of the others.
    """

    first_layer: Count
    end_layer: Positive
    resident: bool
    activations: Activations
    update: Literal["host", "device", "device-streamed"]
    param_bytes: Count
    grad_bytes: Count
    state_bytes: Count
    in_bytes: Count
    saved_bytes: Count
    rng_draws: Count | None
    cast: bool = False
    left_bytes: Count = 0
    base_bytes: Count = 0
    recomputed: tuple[Count, ...] = ()

    def keeps(self, microbatch: int) -> Activations:
        """The activations of one microbatch."""
        at = bisect_left(self.recomputed, microbatch)
        again = self.recomputed[at : at + 1] == (microbatch,)
        return "recompute" if again else self.activations


class Lengths(Struct, frozen=True):
    """Samples of every length, and the microbatch of each sample of each step.

    sha256, samples: of the profile's lengths. table: of a file beside the plan, little-endian
    uint16, `batch` for each of the task's steps: the microbatch of each of the step's samples.
    padded: each sequence of a microbatch is extended to the longest one there.
    reordered: samples come in another order than their own, which the table begins with: each stays
    within its window of so many steps; 0: in their own.
    token_draws: for each shard, how many of its `rng_draws` each of `microbatch` tokens adds; ():
    none of any shard.
    Those of an evaluation have a table of one row, of all its samples: the microbatch of each,
    numbered through its rounds.
    """

    sha256: Sha256
    samples: Positive
    table: Sha256
    padded: bool = False
    reordered: Count = 0
    token_draws: tuple[Count, ...] = ()


class Task(Struct, frozen=True, kw_only=True, dict=True):
    """A task with `lengths` has `batch` samples in a step, microbatches of at most `microbatch`
    tokens (the bytes of one are for so many), and at most `microbatches` of them in a round."""

    name: Name
    workload: Workload
    steps: Count  # 0 only in what is left of a plan
    batch: Positive
    microbatch: Positive
    microbatches: Positive
    batch_bytes: Positive  # of one microbatch
    ties: tuple[tuple[Count, ...], ...] = ()  # groups of layers that share a parameter
    tie_bytes: Count = 0  # of a microbatch's gradients of what crosses shards; 0: nothing does
    done: Count = 0  # steps that were trained before this plan begins, which `steps` leaves out
    earlier_microbatch: Count = 0  # of those steps, where it was another: the last bits differ
    start_us: Count = 0  # no segment of the task begins sooner, counted from the run's beginning
    precision: Precision = "fp32"
    norm_bytes: Count = 0  # of all gradients' norms; 0: updates do not wait for them
    evaluation: Evaluation | None = None
    cut: Cut | None = None  # None: a run finds and proves the layers itself
    lengths: Lengths | None = None  # None: all samples are alike
    evaluation_lengths: Lengths | None = None  # of the samples of each evaluation
    parts: Parts = UNKNOWN
    base: str = ""  # the task in whose name the host store has the base; "": it has one alone
    shards: Annotated[tuple[Shard, ...], msgspec.Meta(min_length=1)]

    def homes(self, group: Iterable[int]) -> list[int | None]:
        """The shard of every layer of a group; None for one that is in no shard."""
        return homes([shard.end_layer for shard in self.shards], group)

    @cached_property
    def crossing(self) -> Crossing | None:
        """The ties that cross shards; None where none does, or where they make no sense."""
        ends = [shard.end_layer for shard in self.shards]
        return crossing(ends, self.ties) if self.tie_bytes else None


class Device(Struct, frozen=True):
    """budget_bytes is what a program's slab and reserve share while it runs there.

    node: the machine that has it; nodes have host stores of their own."""

    name: Label
    kind: DeviceKind
    budget_bytes: Positive
    threads: Threads
    emulation: Emulation | None = None
    node: Count = 0


class Host(Struct, frozen=True, dict=True):
    """The host store: where every task's parameters, state and gradients live between rounds.

    On several nodes each has such a store, with the same buffers at the same offsets, of which it
    takes memory for those that it uses; the budget is that of each node."""

    budget_bytes: Positive
    buffers: tuple[Buffer, ...]

    @cached_property
    def bytes(self) -> int:
        """The bytes of the store, up to the end of its last buffer."""
        return max((buffer.offset + buffer.bytes for buffer in self.buffers), default=0)


class Memory(Struct, frozen=True):
    """Memory of one device: the slab holds the buffers, the reserve the transients of ops."""

    slab_bytes: Count
    reserve_bytes: Count

    @property
    def bytes(self) -> int:
        """Both together: the peak of the device."""
        return self.slab_bytes + self.reserve_bytes


class RoundKind(Struct, frozen=True):
    """Another kind of round of a program: its ops, and the most tokens of each microbatch."""

    tokens: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)]
    period_us: Count
    round_us: Count
    ops: Annotated[tuple[Op, ...], msgspec.Meta(min_length=1)]


class Program(Struct, frozen=True):
    """The ops of a segment: `enter` once, `round` again and again, `leave` once.

    Devices are numbered from 0, with `memory` for each; a segment says which of the plan's devices
    they are.
    Op times are relative to their phase: enter begins at 0, round r at enter_us + r * period_us,
    leave when the last round (which lasts round_us) ends.
    evaluates: its rounds are batches of which only the loss is taken; they change nothing.
    tokens: the most tokens of each microbatch of `round`, in a task with lengths. kinds: the other
    kinds of rounds, numbered from 1; `round` is kind 0. Rounds of different kinds do not overlap.
    """

    name: Label
    memory: Annotated[tuple[Memory, ...], msgspec.Meta(min_length=1)]
    tasks: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    enter_us: Count
    period_us: Count
    round_us: Count
    leave_us: Count
    buffers: tuple[Buffer, ...]
    enter: tuple[Op, ...]
    round: Annotated[tuple[Op, ...], msgspec.Meta(min_length=1)]
    leave: tuple[Op, ...]
    evaluates: bool = False
    tokens: tuple[Positive, ...] = ()
    kinds: tuple[RoundKind, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices that the program runs on."""
        return len(self.memory)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops of all phases, each once; those of all kinds of rounds, which share names."""
        rounds = (op for kind in self.kinds for op in kind.ops)
        return (*self.enter, *self.round, *rounds, *self.leave)


class Segment(Struct, frozen=True):
    """`rounds` rounds of a program on some devices. Segments that share a device or a task run in
    the order of the list, each beginning when the earlier ones have ended.

    kinds: pairs (kind, rounds) in turn; none: all are of kind 0. read_us: how long its tasks are
    read from the disk before, write_us: written to it behind, where they wait there; None: not."""

    program: Label
    devices: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    rounds: Positive
    start_us: Count
    end_us: Count
    kinds: tuple[tuple[Count, Positive], ...] = ()
    read_us: Count | None = None
    write_us: Count | None = None

    @property
    def disk_us(self) -> int:
        """The time that its tasks are read and written."""
        return (self.read_us or 0) + (self.write_us or 0)


class Plan(Struct, frozen=True, kw_only=True, dict=True):
    format: Literal["plan"] = "plan"
    version: Literal[1] = 1
    inputs: dict[str, Sha256]  # role of the input file -> its sha256
    devices: Annotated[tuple[Device, ...], msgspec.Meta(min_length=1)]
    host: Host
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(min_length=1)]
    programs: Annotated[tuple[Program, ...], msgspec.Meta(min_length=1)]
    segments: Annotated[tuple[Segment, ...], msgspec.Meta(min_length=1)]
    prediction: Prediction
    solver: Solver
    numerics: Numerics = Numerics()
    estimated: bool = False  # times from formulas, not from measurements
    provenance: dict[str, str] = {}

    def program(self, name: str) -> Program:
        """The program of this name; KeyError where there is none."""
        return self._programs[name]

    def task(self, name: str) -> Task:
        """The task of this name; KeyError where there is none."""
        return self._tasks[name]

    def trained(self, segment: Segment) -> tuple[str, ...]:
        """The tasks of a segment's program."""
        return self.program(segment.program).tasks

    @cached_property
    def _programs(self) -> dict[str, Program]:
        return {program.name: program for program in self.programs}

    @cached_property
    def _tasks(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    @property
    def emulated(self) -> str:
        """The words wherever a time is shown: how devices are emulated, nothing of real ones."""
        return next((device.emulation.words for device in self.devices if device.emulation), "")

    @property
    def compute_slowdown(self) -> int:
        """The factor by which its devices compute slower than their host, 1 where they do not."""
        return max(d.emulation.compute_slowdown if d.emulation else 1 for d in self.devices)
