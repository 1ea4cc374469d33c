"""One strategy for every task, of those that were found: the one by which all tasks end soonest.

The configuration program says what is taken; where some strategies are for several devices at once,
timetables say whether they are worth it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from planner.bounds import (
    Column,
    Demand,
    Status,
    column,
    configuration,
    demand_of,
    model_of,
    solve,
    total,
)
from planner.inputs import Effort, Problem
from planner.search import descend
from planner.timetable.assign_jobs import Way, assign_jobs, jobs_of
from planner.timetable.jobs import Score, score
from planner.timetable.sets import sets
from profiles.schema import Task

_CHOICE_SECONDS = 10.0  # for the program with one strategy for each task
_ABOUT = 128  # times that differ by less than 1/n are about the same

W = TypeVar("W", bound=Way)

Choice = tuple[int, ...]
"""For every task the place of a strategy among its own."""


def columns_of(problem: Problem, task: Task, way: Way, *, free: bool = False) -> list[Column]:
    """All steps of a task by each program of a strategy. free: as if samples of each step could
    still be divided among pipelines in any way."""
    made, packed = list[Column](), way.packed
    for kind, program in zip(problem.kinds, way.programs, strict=True):
        if program and packed and (free or packed.parts):
            us = packed.least_us if free else sum(part.us for part in packed.parts)
            made.append(Column(task.name, kind.name, us, program.devices))
        elif program:
            turns = packed.turns if packed else ()
            made.append(column(program, kind.name, task.steps, turns))
    return made


def schedule_bound_us(
    problem: Problem, ways: Sequence[Sequence[Way]], effort: Effort, *, free: bool = False
) -> int:
    """A lower bound on any schedule of the tasks by these strategies, even if a task could have
    several of them. free: and if its samples were divided among their pipelines in any way."""
    columns = [
        one
        for task, own in zip(problem.tasks, ways, strict=True)
        for way in own
        for one in columns_of(problem, task, way, free=free)
    ]
    demand = demand_of(problem)
    least = configuration(demand, columns, effort).us
    small = len(problem.tasks) * problem.devices <= effort.limits.gang_pairs
    if small and any(one.devices > 1 for one in columns):
        least = max(least, sets(demand, columns, effort).us)
    return least


def choose_programs(problem: Problem, ways: Sequence[Sequence[W]], effort: Effort) -> list[W]:
    """One strategy for every task, which it keeps on all kinds of devices: those that let all tasks
    end soonest, or where there are too many to say so, those by which the program trains most of
    each task. Where some are for several devices at once, the choice whose timetable is best."""
    if all(len(own) == 1 for own in ways):
        return [own[0] for own in ways]
    choice = _by_program(problem, ways, effort)
    if any(way.program.devices > 1 for own in ways for way in own):
        choice = _by_timetable(problem, ways, choice, effort)
    return _chosen(ways, choice)


def _chosen(ways: Sequence[Sequence[W]], choice: Choice) -> list[W]:
    return [own[at] for own, at in zip(ways, choice, strict=True)]


def _by_program(problem: Problem, ways: Sequence[Sequence[Way]], effort: Effort) -> Choice:
    """As the configuration program has it."""
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
    return tuple(each.index(max(each)) for each in trained)


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
    if solve(model, seconds=seconds, seed=effort.seed, gap=1e-4) is not Status.FOUND:
        return None
    return [part.value() for part in parts]


def _by_timetable(
    problem: Problem, ways: Sequence[Sequence[Way]], choice: Choice, effort: Effort
) -> Choice:
    """The choice with the best timetable of: this one, those of strategies within some time, and
    those that other strategies for single tasks lead to."""
    demand, objective, limits = demand_of(problem), problem.objective, effort.limits
    tasks = list(zip(problem.tasks, ways, strict=True))
    columns = [[columns_of(problem, task, way) for way in own] for task, own in tasks]
    small = len(ways) * problem.devices <= limits.gang_pairs
    brief = replace(effort, limits=replace(limits, timetable_parts=0))
    scores: dict[Choice, Score] = {}

    def least(one: Choice) -> int:
        chosen = [c for own, at in zip(columns, one, strict=True) for c in own[at]]
        return configuration(demand, chosen, effort).us

    def rated(one: Choice) -> Score:
        if one not in scores:
            jobs = jobs_of(problem, _chosen(ways, one))
            found = assign_jobs(jobs, problem.kind_of, 0, brief, objective)
            scores[one] = score(jobs, found, objective)
        return scores[one]

    def hopeless(one: Choice, now: Score) -> bool:
        return small and objective == "makespan" and not now.late_us and least(one) >= now.value

    def neighbours(now: Choice) -> Iterator[tuple[int, Choice | None]]:
        for number, own in enumerate(ways):
            for other in range(len(own)):
                changed = (*now[:number], other, *now[number + 1 :])
                if changed not in scores and effort.left > 0 and not hopeless(changed, rated(now)):
                    yield len(ways), changed

    every = [one for own in columns for way in own for one in way]
    about = configuration(demand, every, effort).us
    most = max(limits.choice_starts, limits.choice_works // len(ways))
    within = dict.fromkeys(islice(_within(columns, about), most))
    near = sorted(within, key=least)[: limits.choice_starts]
    return descend(min([choice, *near], key=rated), neighbours, rated, limits.choice_works)


def _within(columns: Sequence[Sequence[Sequence[Column]]], about: int) -> Iterator[Choice]:
    """For any time that some task may take, those next to `about` first: of the strategies that
    take no longer, those that take about the least time of all their devices together, and the
    narrowest of these; the shortest where all take longer.

    columns: by task and strategy.
    """
    thrifty = [min(one.us * one.devices for way in own for one in way) for own in columns]
    times = {one.us for own in columns for way in own for one in way}
    for limit in sorted(times, key=lambda us: (abs(us - about), us)):
        choice = []
        for own, least in zip(columns, thrifty, strict=True):
            keys = [
                min(
                    (
                        max(0, one.us - limit),
                        one.us * one.devices * _ABOUT // max(1, least),
                        one.devices,
                    )
                    for one in way
                )
                for way in own
            ]
            choice.append(keys.index(min(keys)))
        yield tuple(choice)
