"""A way to train every task: searched once for all tasks of one shape."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from planner import hydra, workers
from planner.choice import Choice
from planner.costs import Links, TaskCosts, shape_of
from planner.errors import Infeasible
from planner.hydra import HydraChoice
from planner.names import renamed
from planner.problem import Effort, Problem
from planner.search import OPS, Search
from plans.metrics import duration_us
from plans.schema import Program
from profiles.schema import Task

_FULL = 6  # shapes that are searched with full effort; more of them share it
_LATER = 0.25  # of the time, for what follows the search


@dataclass(frozen=True)
class Answer:
    """One task's choice and program, and how it was found."""

    choice: Choice | HydraChoice
    program: Program
    candidates: int
    complete: bool


def found(problem: Problem, effort: Effort, jobs: int) -> list[Answer]:
    """The best that is found for every task; Infeasible or NoPlanFound when there is nothing.

    Where time is short, some of it is left for bounds and placement.
    """
    shapes = {shape_of(task): task for task in reversed(problem.tasks)}
    tasks = [task for task in problem.tasks if shapes[shape_of(task)] is task]
    best = partial(_best, replace(problem, tasks=()), OPS * _FULL // max(_FULL, len(tasks)))
    own = Effort(effort.deadline - effort.left * _LATER, effort.seed)
    answers = workers.each(best, tasks, own, jobs)
    return _for_all(problem.tasks, dict(zip(map(shape_of, tasks), answers, strict=True)))


def baselines(problem: Problem) -> list[Answer]:
    """Every task as Hydra trains it."""
    shapes = {shape_of(task): task for task in reversed(problem.tasks)}
    of = {shape: _baseline(problem, task) for shape, task in shapes.items()}
    return _for_all(problem.tasks, of)


def _for_all(tasks: Iterable[Task], of: dict[object, Answer]) -> list[Answer]:
    """For each task the answer for its shape; what was searched is counted once."""
    return [_named(task, of[shape_of(task)]) for task in tasks]


def _named(task: Task, answer: Answer) -> Answer:
    """What was found for a task of the same shape, for this one."""
    old = answer.choice.costs
    if task.name == old.task.name:
        return answer
    choice = replace(answer.choice, costs=TaskCosts(task, old.microbatch))
    program = renamed(answer.program, {old.task.name: task.name})
    return Answer(choice, program, 0, answer.complete)


def _best(problem: Problem, ops: int, task: Task, effort: Effort) -> Answer:
    """The shorter of what the search finds and of the baseline, which sweeps once per microbatch
    and so needs less memory for boundaries; Infeasible when neither fits."""
    failures: list[Infeasible] = []
    answers: list[Answer] = []
    links = Links.of(problem.device)
    search = Search(task, links, problem.device_bytes, ops, taken_bytes=problem.taken_bytes)
    try:
        best = search.best(effort)
        answers.append(Answer(best.choice, best.program, best.candidates, best.complete))
    except Infeasible as error:
        failures.append(error)
    try:
        answers.append(_baseline(problem, task))
    except Infeasible as error:
        failures.append(error)
    if not answers:
        raise min(failures, key=lambda failure: failure.smallest)
    return min(answers, key=lambda answer: duration_us(answer.program, task.steps))


def _baseline(problem: Problem, task: Task) -> Answer:
    choice = hydra.choose(task, problem.device_bytes, problem.taken_bytes)
    return Answer(choice, hydra.program(choice, Links.of(problem.device)), 1, True)
