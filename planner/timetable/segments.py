"""Segments of no more than so many rounds: where tasks can be kept, stopped, and gone on from.

    a ████████████   b ██████      becomes      a ████ a ████ a ████   b ███ b ███

Each costs the entering and leaving of one more segment. Those of a task that is evaluated end
where that is due, and an evaluation follows.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.inputs import Problem, Want
from plans.evaluation import due_steps
from plans.schema import Program, Segment
from plans.segments import Run, laid_out
from profiles.errors import FormatError
from profiles.schema import Task

MOST_SEGMENTS = 100_000
"""A plan lists all its segments."""


def few_segments(problem: Problem) -> None:
    """FormatError where evaluations and --segment-steps would cut a plan into too many pieces."""
    for task in problem.tasks:
        due = len(due_steps(task.evaluation, problem.done.get(task.name, 0), task.steps))
        pieces = 2 * due + task.steps // (problem.segment_steps or task.steps)
        if pieces > MOST_SEGMENTS:
            raise FormatError(
                f"{task.name}: {task.steps} steps with {due} evaluations would be cut into about "
                f"{pieces} segments, a plan has {MOST_SEGMENTS} at most; evaluate less often, or "
                "give a larger --segment-steps"
            )


def cut(
    problem: Problem,
    segments: Sequence[Segment],
    programs: Mapping[str, Program],
    evaluates: Mapping[str, Program],
) -> list[Segment]:
    """The segments as the problem wants them cut, with evaluations in between. `evaluates`: by the
    name of a program that trains a task, the one that evaluates it."""
    if not evaluates:
        return parted(segments, programs, problem.segment_steps)
    courses = {task.name: _Course(problem, task) for task in problem.tasks}

    def runs() -> Iterator[Run]:
        for segment in sorted(segments, key=lambda s: s.start_us):
            program = programs[segment.program]
            (course,) = (courses[name] for name in program.tasks)
            for rounds in course.pieces(segment.rounds, problem.segment_steps):
                one, count = (
                    (program, rounds) if rounds else (evaluates[program.name], course.batches)
                )
                # As soon as may be: segments' starts only know about how long evaluations take.
                yield one, segment.devices, count, course.start_us

    return sorted(laid_out(runs()), key=lambda s: (s.start_us, s.devices))


class _Course:
    """The steps that a task has done, and when its next evaluation is due."""

    def __init__(self, problem: Problem, task: Task) -> None:
        self.start_us = problem.wants.get(task.name, Want()).start_us
        self.batches = task.evaluation.batches if task.evaluation else 0
        self._done = problem.done.get(task.name, 0)
        self._due = list(due_steps(task.evaluation, self._done, task.steps))[::-1]

    def pieces(self, rounds: int, most: int | None) -> Iterator[int]:
        """So many rounds to train as pieces of at most `most`, 0 for an evaluation."""
        yield from self._evaluations()
        while rounds:
            until = [self._due[-1] - self._done] if self._due else []
            count = min(rounds, *until, *([most] if most else []), rounds)
            self._done += count
            rounds -= count
            yield count
            yield from self._evaluations()

    def _evaluations(self) -> Iterator[int]:
        if self._due and self._due[-1] == self._done:
            self._due.pop()
            yield 0


def parted(
    segments: Sequence[Segment],
    programs: Mapping[str, Program],
    rounds: int | None,
) -> list[Segment]:
    """The segments, none of more than `rounds` rounds, in the same order on every device and for
    every task, and none earlier than it was. None: as they are."""
    if rounds is None:
        return list(segments)

    def runs() -> Iterator[Run]:
        for segment in sorted(segments, key=lambda s: s.start_us):
            for gone in range(0, segment.rounds, rounds):
                count = min(rounds, segment.rounds - gone)
                yield programs[segment.program], segment.devices, count, segment.start_us

    return sorted(laid_out(runs()), key=lambda s: (s.start_us, s.devices))
