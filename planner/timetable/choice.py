"""One strategy for every task, of those that were found on each kind of devices: the configuration
program says which."""

from collections.abc import Sequence
from typing import Any

from planner.inputs import Effort, Problem
from planner.lp import solve, total
from planner.search import Candidate
from planner.timetable.configuration import (
    Column,
    Demand,
    column,
    configuration,
    demand_of,
    model_of,
)
from profiles.schema import Task

_CHOICE_SECONDS = 10.0  # for the program with one strategy for each task


def columns_of(problem: Problem, task: Task, way: Candidate) -> list[Column]:
    """All steps of a task by each program of a strategy."""
    kinds = zip(problem.kinds, way.programs, strict=True)
    return [column(program, kind.name, task.steps) for kind, program in kinds if program]


def least_us(problem: Problem, chosen: Sequence[Candidate], effort: Effort) -> int:
    """A lower bound on any schedule of the tasks by these strategies."""
    tasks = zip(problem.tasks, chosen, strict=True)
    columns = [one for task, way in tasks for one in columns_of(problem, task, way)]
    return configuration(demand_of(problem), columns, effort).us


def settled(
    problem: Problem, ways: Sequence[Sequence[Candidate]], effort: Effort
) -> list[Candidate]:
    """One strategy for every task, which it keeps on all kinds of devices: those that let all tasks
    end soonest, or where there are too many to say so, those by which the program trains most of
    each task."""
    if all(len(own) == 1 for own in ways):
        return [own[0] for own in ways]
    columns, of = [], []
    for number, (task, own) in enumerate(zip(problem.tasks, ways, strict=True)):
        for strategy, way in enumerate(own):
            mine = columns_of(problem, task, way)
            columns += mine
            of += [(number, strategy)] * len(mine)
    demand, parts = demand_of(problem), None
    if sum(map(len, ways)) <= effort.limits.chosen_binaries:
        parts = _one_choice_each(demand, columns, of, effort)
    trained = [[0.0] * len(own) for own in ways]
    found = parts or configuration(demand, columns, effort).parts
    for (number, strategy), part in zip(of, found, strict=True):
        trained[number][strategy] += part
    return [own[each.index(max(each))] for own, each in zip(ways, trained, strict=True)]


def _one_choice_each(
    demand: Demand, columns: Sequence[Column], of: Sequence[tuple[int, int]], effort: Effort
) -> list[float] | None:
    """The part of every column where each task is trained by columns of one strategy only; None
    where that is not solved in time. of: the task and the strategy of each column."""
    thrift = 1 / effort.limits.chosen_thrift
    model, parts = model_of(demand, columns, dict.fromkeys(c.task for c in columns), thrift)
    takes: dict[int, dict[int, Any]] = {number: {} for number, _ in of}
    for (number, strategy), part in zip(of, parts, strict=True):
        if strategy not in takes[number]:
            name = f"take_{number}_{strategy}"
            takes[number][strategy] = model.add_variable(name, 0, 1, cat="Binary")
        model += total([(1, part), (-1, takes[number][strategy])]) <= 0
    for own in takes.values():
        model += total((1, take) for take in own.values()) == 1
    seconds = min(_CHOICE_SECONDS, max(1.0, effort.left))
    if not solve(model, seconds=seconds, seed=effort.seed, gap=1e-4).found:
        return None
    return [part.value() for part in parts]
