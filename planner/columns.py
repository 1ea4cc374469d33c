"""Columns of the configuration program for tasks' own programs, and which strategy each is given.

A task keeps one choice in all its programs, so where there are several strategies of it, each with
programs on several kinds of devices, one is to be taken.
"""

from collections.abc import Sequence

from planner.configuration import Demand, column, configuration
from planner.problem import Effort, Problem
from planner.search import Strategy

_TIE_BREAK = 1e-3  # so that the program uses no device for nothing


def demand_of(problem: Problem) -> Demand:
    """What the problem asks of the configuration program."""
    starts = {name: want.start_us for name, want in problem.wants.items()}
    return Demand({kind.name: kind.count for kind in problem.kinds}, starts)


def settled(problem: Problem, ways: Sequence[Sequence[Strategy]], effort: Effort) -> list[Strategy]:
    """Of every task the strategy by which the configuration program trains most of it."""
    if all(len(own) == 1 for own in ways):
        return [own[0] for own in ways]
    columns, of = [], []
    for number, (task, own) in enumerate(zip(problem.tasks, ways, strict=True)):
        for at, way in enumerate(own):
            for kind, program in zip(problem.kinds, way.programs, strict=True):
                if program:
                    columns.append(column(program, kind.name, task.steps))
                    of.append((number, at))
    found = configuration(demand_of(problem), columns, effort, _TIE_BREAK)
    trained = [[0.0] * len(own) for own in ways]
    for (number, at), part in zip(of, found.parts, strict=True):
        trained[number][at] += part
    return [own[parts.index(max(parts))] for own, parts in zip(ways, trained, strict=True)]
