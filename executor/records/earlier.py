"""An earlier start of a run, by its log: how far it came, and which lines of the log stand.

A log is of an earlier start where one of the torchruns that it names has started this one, too.
Work after the latest checkpoints is lost with the process that was killed, and done again; so are
its lines. The log goes on with the others, and its times count from the first start.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from executor.outputs import part_of
from plans import runlog
from plans.order import Reached, due_of, rest
from plans.runlog import (
    CheckpointRecord,
    DropRecord,
    End,
    EvaluationRecord,
    Header,
    Line,
    OpRecord,
    StepRecord,
    StopRecord,
)
from plans.schema import Plan
from plans.timing import kinds_of
from profiles.errors import FormatError


class Laps:
    """The times that a process, begun just now, spends before its first step."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._latest = _begun()

    def lap(self, name: str) -> None:
        """All since the last lap, or since the process began, was for this."""
        now = time.perf_counter()
        self._seconds[name] = now - self._latest
        self._latest = now

    def __str__(self) -> str:
        """`6.2 s: imports 3.1 s, plan 0.4 s, ...`"""
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._seconds.items())
        return f"{sum(self._seconds.values()):.1f} s: {parts}"


def _begun() -> float:
    """The time.perf_counter() at which this process began."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = time.clock_gettime(time.CLOCK_BOOTTIME) - time.perf_counter()
    return ticks / os.sysconf("SC_CLK_TCK") - up


@dataclass(frozen=True)
class Earlier:
    """The earlier start of a run of `plan`. origin: the time.perf_counter() at which it began;
    reached: where its tasks go on; error: why it ended, empty where it was killed; laps: of what
    comes before the first step now."""

    plan: Plan
    header: Header
    origin: float
    reached: Reached
    lines: Sequence[Line]
    error: str
    laps: Laps = field(default_factory=Laps)

    @cached_property
    def rest(self) -> Plan:
        """The plan of what is left."""
        return rest(self.plan, self.reached)

    @cached_property
    def made(self) -> dict[int, int]:
        """The rounds that are behind each segment, for those that go on in their middle."""
        pairs = enumerate(zip(self.plan.segments, self.rest.segments, strict=True))
        return {
            index: whole.rounds - left.rounds
            for index, (whole, left) in pairs
            if 0 < left.rounds < whole.rounds
        }

    @property
    def over(self) -> list[DropRecord | StopRecord]:
        """The tasks that were dropped or stopped."""
        return [line for line in self.lines if isinstance(line, DropRecord | StopRecord)]

    def standing(self) -> Iterator[Line]:
        """The lines of the log that stand: of what is not done again."""
        gone = {record.task for record in self.over}
        done, left = self.reached.done, self.rest.segments
        for line in self.lines:
            if isinstance(line, OpRecord) and line.op.partition(".")[0] in gone:
                stands = True
            elif isinstance(line, OpRecord):
                stands = not left[line.segment].rounds
                stands |= self._repeats(line) and line.round < self.made[line.segment]
            elif isinstance(line, StepRecord):
                stands = line.step < done[line.task] or line.task in gone
            elif isinstance(line, EvaluationRecord):
                stands = line.step <= done[line.task] or line.task in gone
            else:
                stands = not isinstance(line, End)
            if stands:
                yield line

    def placed(self, line: Line) -> Line:
        """A line of the rest as one of the whole plan."""
        if isinstance(line, OpRecord) and self._repeats(line):
            return replace(line, round=line.round + self.made[line.segment])
        return line

    @cached_property
    def _in_rounds(self) -> dict[int, frozenset[str]]:
        """The ops that are repeated, of segments that go on in their middle."""
        programs = {index: self.plan.segments[index].program for index in self.made}
        return {
            i: frozenset(op.id for kind in kinds_of(self.plan.program(p)) for op in kind.ops)
            for i, p in programs.items()
        }

    def _repeats(self, line: OpRecord) -> bool:
        return line.op in self._in_rounds.get(line.segment, ())


def find(log: Path, plan: Plan, plan_sha256: str, agents: Sequence[str]) -> Earlier | None:
    """The earlier start of a run of this plan that has written the log; None where there is none.
    agents: those that have started this one, the one of this process first."""
    for path in filter(Path.is_file, (part_of(log), log)):
        try:
            header, lines = runlog.read(path)
        except FormatError:
            continue
        if header.plan_sha256 == plan_sha256 and set(header.agents) & set(agents):
            error = next((line.error for line in lines if isinstance(line, End)), "")
            origin, known = _origin(header, lines, agents[0]), (*header.agents, *agents)
            header = replace(header, agents=tuple(dict.fromkeys(known)))
            return Earlier(plan, header, origin, _reached(plan, lines), lines, error)
    return None


def _origin(header: Header, lines: Sequence[Line], agent: str) -> float:
    """When the run began: by the clock of this machine, if it began here, which nobody sets; else
    by the time of day, but no later than its lines say."""
    if header.agents[0].partition(" ")[0] == agent.partition(" ")[0]:
        return header.up_us / 1e6
    began = datetime.fromisoformat(header.started).timestamp()
    latest = max((getattr(line, "end_us", getattr(line, "at_us", 0)) for line in lines), default=0)
    return time.perf_counter() - max(time.time() - began, latest / 1e6)


def _reached(plan: Plan, lines: Sequence[Line]) -> Reached:
    """The point that the latest checkpoints are of."""
    kept = {line.task: line for line in lines if isinstance(line, CheckpointRecord)}
    done = {t.name: kept[t.name].step if t.name in kept else t.done for t in plan.tasks}
    judged = {(line.task, line.step) for line in lines if isinstance(line, EvaluationRecord)}
    owed = [
        task.name
        for task in plan.tasks
        if done[task.name] in due_of(task) and (task.name, done[task.name]) not in judged
    ]
    return Reached(done, tuple(owed), {name: line.file for name, line in kept.items()})
