"""The types of a part. It goes to its process as a message, in which a float has no place."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from plans.schema import Buffer, Device, Memory, Op, Task
from plans.timing import Interval
from profiles.schema import Numerics, Struct

Pair = tuple[int, int]  # devices of the plan, the sender first


class PhasePart(Struct, frozen=True):
    """A phase of a program as a process knows it.

    ops: those that it runs; takes: X that come from other processes. Each waits `after` what is to
    be waited for here. tells: of `ops`, those whose ends other processes wait for, and these.
    places: by stream, the ops of other processes that are waited for here, and their numbers there,
    from 1; counts: all ops of these streams.
    """

    ops: tuple[Op, ...] = ()
    takes: tuple[Op, ...] = ()
    tells: dict[str, tuple[int, ...]] = {}
    places: dict[str, dict[str, int]] = {}
    counts: dict[str, int] = {}


class ProgramPart(Struct, frozen=True):
    """A program as a process knows it: memory and buffers of its own devices, and the buffers that
    it sends to. crossing: pairs of its devices, the sender first, of X from and to other processes.
    tokens: the most of each microbatch, by phase.
    """

    name: str
    tasks: tuple[str, ...]
    evaluates: bool
    memory: dict[int, Memory]
    buffers: tuple[Buffer, ...]
    crossing: tuple[tuple[int, int], ...]
    phases: dict[str, PhasePart]
    tokens: dict[str, tuple[int, ...]]

    @property
    def ops(self) -> Iterator[Op]:
        """The ops of all phases that the process runs."""
        return (op for phase in self.phases.values() for op in phase.ops)

    @property
    def busy(self) -> bool:
        """True if the process has anything to do."""
        return any(phase.ops or phase.takes for phase in self.phases.values())


class SegmentPart(Struct, frozen=True):
    """A segment as a process knows it. program: its number in the part; devices: those of the plan
    by those of the program, its own and the ones it exchanges X with; steps: see `first_steps`;
    others: the other processes that have ops of it, as ranges."""

    program: int
    devices: dict[int, int]
    rounds: int
    kinds: tuple[tuple[int, int], ...]
    steps: dict[str, int]
    others: tuple[tuple[int, int], ...]

    @property
    def ranks(self) -> list[int]:
        """The other processes that have ops of it."""
        return [rank for begin, end in self.others for rank in range(begin, end)]


class Part(Struct, frozen=True, kw_only=True, dict=True):
    """All that a process needs of a plan. Process 0, which leads, has all tasks; the first process
    of each node those whose state its store ever has; the others those that they train.

    devices: its own, by number. ranks: the processes of these and of all that they exchange X with.
    node, node_devices: its node, and how many devices that has, `first` of them before its own.
    threads: the most of any device. store_bytes: of the host store, of which its node uses `spans`
    and ever keeps the shards `held`. away: tasks that begin on the disk.
    pairs: of all `pair_count` pairs of devices in different processes with an X, those of its own,
    by number. routes: of all `route_count` other nodes, from whose host stores node 0 fetches what
    it writes to files, its own one, or all in node 0, by number, if it is the first process of its
    node; firsts: those of these nodes and of node 0."""

    devices: dict[int, Device]
    ranks: dict[int, int]
    node: int
    node_devices: int
    first: int
    threads: int
    numerics: Numerics
    tasks: tuple[Task, ...]
    programs: tuple[ProgramPart, ...]
    segments: dict[int, SegmentPart]
    store_bytes: int
    spans: tuple[Interval, ...]
    held: dict[str, tuple[int, ...]]
    buffers: tuple[Buffer, ...]  # of the host store, that its tasks and ops name
    away: tuple[str, ...]
    pairs: dict[int, Pair]
    pair_count: int
    routes: dict[int, int]
    route_count: int
    firsts: dict[int, int]

    def program(self, segment: int) -> ProgramPart:
        """The program of a segment."""
        return self.programs[self.segments[segment].program]

    def task(self, name: str) -> Task:
        """The task of this name; KeyError where there is none."""
        return self._tasks[name]

    @cached_property
    def _tasks(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    @property
    def kind(self) -> str:
        """The kind of its devices."""
        return next(iter(self.devices.values())).kind

    @property
    def slabs(self) -> dict[int, int]:
        """Bytes of each device's slab: the largest of the programs that run there."""
        found = dict.fromkeys(self.devices, 0)
        for segment in self.segments.values():
            for local, memory in self.programs[segment.program].memory.items():
                number = segment.devices[local]
                found[number] = max(found[number], memory.slab_bytes)
        return found


def target_of(op: Op, spaces: Mapping[str, int]) -> int:
    """The device that an X writes to."""
    (buffer,) = op.writes.values()
    return spaces[buffer]
