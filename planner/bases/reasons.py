"""Why tasks of one base train apart: in a plan, a line for each group of them."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec import structs

from planner.bases.groups import Base, Grouping, alone, base_of, facts, unasked, whole
from planner.inputs import Problem
from plans.prediction import Group
from plans.schema import Plan
from profiles.schema import LONGEST_NAME
from profiles.units import show_us

Tried = Sequence[tuple[Grouping, int | str]]
"""Groupings that were planned, and how long each takes, in µs, or why there is none."""


def told(problem: Problem, plan: Plan, tried: Tried = (), why: str = "") -> Plan:
    """The plan with the groups of each base that has several. why: none were looked for."""
    bases: dict[Base, list[str]] = {}
    for task in problem.tasks:
        if task.base:
            bases.setdefault(base_of(task), []).append(task.name)
    found = list[Group]()
    for names in bases.values():
        groups = _groups(plan, names)
        for group in groups if len(groups) > 1 else ():
            reasons = dict.fromkeys(_reasons(problem, group, names, tried, why))
            found.append(Group(tuple(group), names[0], "; ".join(reasons)[:LONGEST_NAME]))
    return structs.replace(plan, solver=structs.replace(plan.solver, groups=tuple(found)))


def _groups(plan: Plan, names: Sequence[str]) -> list[list[str]]:
    """Those of these tasks that train together."""
    found: dict[str, list[str]] = {}
    firsts = {
        name: program.name
        for program in plan.programs
        for name in program.tasks
        if not program.evaluates and plan.task(name).base
    }
    for name in names:
        found.setdefault(firsts.get(name, f" {name}"), []).append(name)
    return list(found.values())


def _reasons(
    problem: Problem, group: Sequence[str], names: Sequence[str], tried: Tried, why: str
) -> Iterator[str]:
    """The reasons why a group has no more of the tasks of its base."""
    if why := why or unasked(problem):
        yield why
        return
    tasks = {task.name: task for task in problem.tasks}
    first, mine = group[0], facts(problem, group[0])
    if own := alone(problem, tasks[first]) or whole(tasks[first]):
        yield own
        return
    others: dict[str, list[str]] = {}
    for name in names:
        if name not in group and not (alone(problem, tasks[name]) or whole(tasks[name])):
            others.setdefault(_difference(mine, facts(problem, name)), []).append(name)
    if others.pop("", []):
        yield from _sizes(len(group), tried)
    for differs, whose in others.items():
        yield f"{differs} of {', '.join(whose)}"


def _difference(mine: Mapping[str, Hashable], other: Mapping[str, Hashable]) -> str:
    """The first fact that differs, with both values where these are short."""
    for what, value in mine.items():
        if value != other[what]:
            short = isinstance(value, int | str)
            return f"{what} {value}, not the {other[what]}" if short else f"other {what} than those"
    return ""


def _sizes(size: int, tried: Tried) -> Iterator[str]:
    """A clause for each larger group that was planned: when it would end, or why it has no plan."""
    for grouping, result in tried:
        largest = max(map(len, grouping))
        if largest > size:
            told = f"end in {show_us(result)}" if isinstance(result, int) else f"fail: {result}"
            yield f"{largest} together would {told}"
