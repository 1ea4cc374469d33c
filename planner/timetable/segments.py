"""Segments of no more than so many rounds: where tasks can be kept, stopped, and gone on from.

    a ████████████   b ██████      becomes      a ████ a ████ a ████   b ███ b ███

Each costs the entering and leaving of one more segment. Those of a task that is evaluated end
where that is due, and an evaluation follows.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from planner.inputs import Problem, Want
from plans.order import Run, due_steps, laid_out
from plans.schema import Program, Segment
from plans.timing import Runs, part
from profiles.errors import FormatError

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


class Stretch(NamedTuple):
    """Rounds of a program in a row on some devices; `evaluates`: the program that evaluates its
    task, if any does, on no more of them. kinds: of the rounds in turn, none where all are of kind
    0."""

    program: Program
    devices: tuple[int, ...]
    rounds: int
    evaluates: Program | None = None
    kinds: Runs = ()


def cut(problem: Problem, stretches: Iterable[Stretch]) -> list[Segment]:
    """The stretches as the problem wants them cut, with evaluations in between, in the same order
    on every device and for every task."""
    tasks = {task.name: task for task in problem.tasks}
    done = {name: problem.done.get(name, 0) for name in tasks}
    due = {n: deque(due_steps(t.evaluation, done[n], t.steps)) for n, t in tasks.items()}

    def runs() -> Iterator[Run]:
        for program, devices, left, evaluates, kinds in stretches:
            (name,) = program.tasks
            # As soon as may be: segments' starts only know about how long evaluations take.
            start = problem.wants.get(name, Want()).start_us
            evaluation = tasks[name].evaluation
            while True:
                until = due[name][0] - done[name] if due[name] else left
                if evaluation and evaluates and due[name] and not until:
                    due[name].popleft()
                    mine = devices[: evaluates.devices]
                    yield evaluates, mine, evaluation.batches, start, ()
                elif left:
                    rounds = min(left, until, problem.segment_steps or left)
                    first = sum(count for _, count in kinds) - left
                    yield program, devices, rounds, start, part(kinds, first, rounds)
                    done[name] += rounds
                    left -= rounds
                else:
                    break

    return sorted(laid_out(runs()), key=lambda s: (s.start_us, s.devices))
