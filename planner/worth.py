"""Which shapes are worth the full search: those whose better programs would end the plan sooner.

What a better program could reach is a column of the configuration program, as short as the task's
own bound allows. Shapes whose columns it would use for a gain are searched, until it uses none.
"""

from collections.abc import Iterator, Mapping

from planner.answers import Key, Own
from planner.configuration import Demand, configuration
from planner.gangs import Gang
from planner.gangs import gang as gang_of
from planner.problem import Effort, Problem

_WORTH = 10_000  # less than 1/n of the end is not worth a search


def demand_of(problem: Problem) -> Demand:
    """What the problem asks of the configuration program."""
    starts = {name: want.start_us for name, want in problem.wants.items()}
    return Demand(
        {task.name: task.steps for task in problem.tasks},
        {kind.name: kind.count for kind in problem.kinds},
        starts,
    )


def own_gangs(own: Own) -> Iterator[tuple[Key, Gang]]:
    """A gang for every task, of each of its answers, on every kind; what the answer is for."""
    steps = {task.name: task.steps for task in own.problem.tasks}
    for name, keys in own.shapes.of.items():
        for key in keys:
            if key not in own.of:
                continue
            programs = [(key[0], own.of[key].program)]
            programs += [(to[0], own.others[key, to]) for to in keys if (key, to) in own.others]
            for place, program in programs:
                yield key, gang_of(program, own.problem.kinds[place].name, steps, (name,))


def counting(own: Own, effort: Effort) -> list[Key]:
    """The shapes only looked at so far that are worth a closer look, the most valuable first."""
    demand = demand_of(own.problem)
    gangs = [gang for _, gang in own_gangs(own)]
    hoped = _hoped(own)
    chosen: list[Key] = []
    while hoped:
        found = configuration(demand, gangs, effort)
        if not found.prices:
            return [*chosen, *hoped]
        steps, prices = demand.steps, found.prices
        gains = {
            key: sum(max(0.0, prices.gain(one, steps)) for one in columns)
            for key, columns in hoped.items()
        }
        best = max(gains, key=lambda key: gains[key])
        if gains[best] * _WORTH <= found.us:
            break
        chosen.append(best)
        gangs += hoped.pop(best)
    return chosen


def _hoped(own: Own) -> dict[Key, list[Gang]]:
    """For each shape that could be searched more, its tasks' gangs if programs were as short as
    the tasks' bounds."""
    rough: Mapping[Key, list[Gang]] = {key: [] for key in own.rough}
    for task in own.problem.tasks:
        for key in own.shapes.of[task.name]:
            if key in rough and key in own.bounds:
                kind, us = own.problem.kinds[key[0]].name, task.steps * own.bounds[key].period_us
                rough[key].append(Gang(f"{task.name}?", (task.name,), kind, 1, task.steps, us))
    return {key: columns for key, columns in rough.items() if columns}
