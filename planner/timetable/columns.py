"""Columns of the configuration program for tasks' own programs, and which strategy each is given.

A task keeps one strategy in all its programs, so where there are several strategies of it, each
with programs on several kinds of devices, one is to be taken."""

from collections.abc import Iterator, Sequence

from planner.inputs import Effort, Problem
from planner.search import Candidate
from planner.timetable.configuration import Demand, column, configuration, one_choice_each

_TIE_BREAK = 1e-3  # so that the program uses no device for nothing


def demand_of(problem: Problem) -> Demand:
    """What the problem asks of the configuration program."""
    starts = {name: want.start_us for name, want in problem.wants.items()}
    return Demand({kind.name: kind.count for kind in problem.kinds}, starts)


def settled(
    problem: Problem, ways: Sequence[Sequence[Candidate]], effort: Effort
) -> Iterator[list[Candidate]]:
    """Ways to give every task one of its strategies: as the configuration program does that keeps
    to one for each, where it is small; and that by which the program trains most of the task."""
    if all(len(own) == 1 for own in ways):
        yield [own[0] for own in ways]
        return
    columns, tasks, strategies = [], [], []
    for number, (task, own) in enumerate(zip(problem.tasks, ways, strict=True)):
        for strategy, way in enumerate(own):
            for kind, program in zip(problem.kinds, way.programs, strict=True):
                if program:
                    columns.append(column(program, kind.name, task.steps))
                    tasks.append(number)
                    strategies.append(strategy)
    demand = demand_of(problem)
    found = []
    if sum(map(len, ways)) <= effort.limits.chosen_binaries:
        found.append(one_choice_each(demand, columns, strategies, effort, _TIE_BREAK))
    found.append(configuration(demand, columns, effort, _TIE_BREAK).parts)
    for parts in filter(None, found):
        trained = [[0.0] * len(own) for own in ways]
        for number, strategy, part in zip(tasks, strategies, parts, strict=True):
            trained[number][strategy] += part
        yield [own[each.index(max(each))] for own, each in zip(ways, trained, strict=True)]
