"""An earlier start of a run, by the log in its folder: how far it came, and which lines stand.

Work after the latest checkpoints is lost with the process that was killed, and done again; so are
its lines. The log goes on with the others, and so do its times: the pause between counts nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from plans import runlog
from plans.order import Reached, due_of, first_steps, rest
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


@dataclass(frozen=True)
class Earlier:
    """The earlier start of a run of `plan`, or of another one of its book: then the run has
    `moved`. reached: where its tasks go on; error: why it ended, empty where it was killed."""

    plan: Plan
    header: Header
    reached: Reached
    lines: Sequence[Line]
    error: str
    moved: bool = False

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

    @cached_property
    def latest_us(self) -> int:
        """The latest time in the log."""
        times = (getattr(line, "end_us", getattr(line, "at_us", 0)) for line in self.lines)
        return max(times, default=0)

    @property
    def peaks(self) -> tuple[int, ...]:
        """The bytes that each device had at most until this plan's log ended; none where that is
        not known."""
        ended = (line.peak_bytes for line in self.lines if isinstance(line, End))
        return () if self.moved else next(ended, ())

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
                again = line.step == done[line.task] and line.task in self.reached.owed
                stands = line.task in gone or (line.step <= done[line.task] and not again)
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


def find(folder: Path, plan: Plan, plan_sha256: str, book: Collection[str] = ()) -> Earlier | None:
    """The earlier start of a run of this plan in a folder; None where there is none.

    Of a run that another plan of the `book` began, the ops are left out: they are that plan's."""
    try:
        header, lines = runlog.read(folder / runlog.LOG)
    except FormatError:
        return None
    moved = header.plan_sha256 != plan_sha256
    if moved and header.plan_sha256 not in book:
        return None
    if moved:
        lines = [line for line in lines if not isinstance(line, OpRecord)]
    error = next((line.error for line in lines if isinstance(line, End)), "")
    return Earlier(plan, header, _reached(plan, lines), lines, error, moved)


def _reached(plan: Plan, lines: Sequence[Line]) -> Reached:
    """The point that the latest checkpoints are of."""
    kept = {line.task: line for line in lines if isinstance(line, CheckpointRecord)}
    done = {t.name: kept[t.name].step if t.name in kept else t.done for t in plan.tasks}
    judged = {(line.task, line.step) for line in lines if isinstance(line, EvaluationRecord)}
    due = {task.name for task in plan.tasks if done[task.name] in due_of(task)}
    owed = {name for name in due if (name, done[name]) not in judged}
    for segment, steps in zip(plan.segments, first_steps(plan), strict=True):
        now = {name for name, step in steps.items() if step == done[name]}
        if plan.program(segment.program).evaluates and not owed.isdisjoint(now):
            owed |= now  # who is evaluated with them is so again
    return Reached(done, tuple(sorted(owed)))
