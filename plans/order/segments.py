"""Segments in the order of the plan: which waits for which, and how many steps are done by then.

Segments that share a device or a task run one after the other:

    device 0   |  0: a      |  2: b  |        2 waits for 0 (device 0) and for 1 (task b)
    device 1   |  1: b  |
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from plans.schema import Plan, Program, Segment
from plans.timing import Runs, duration_us, runs

Run = tuple[Program, tuple[int, ...], int, int, Runs]
"""A segment to be: its program, devices, rounds, when it may begin at the soonest, and the kinds of
its rounds, none where all are of kind 0."""


def claims(devices: Iterable[int], tasks: Iterable[str]) -> list[int | str]:
    """All that a segment has for itself while it runs."""
    return [*devices, *tasks]


def predecessors(claimed: Iterable[Iterable[Hashable]]) -> list[set[int]]:
    """For each of several entries in a row the latest earlier one of each thing that it claims."""
    latest: dict[Hashable, int] = {}
    found = []
    for index, things in enumerate(claimed):
        own = list(things)
        found.append({latest[thing] for thing in own if thing in latest})
        latest |= dict.fromkeys(own, index)
    return found


def waits_for(plan: Plan) -> list[set[int]]:
    """For each segment the latest earlier one on each of its devices and tasks."""
    return predecessors(claims(one.devices, plan.trained(one)) for one in plan.segments)


def rings(plan: Plan, others: Iterable[str], order: Sequence[set[int]]) -> Iterator[str]:
    """One ring in which segments, and others that are numbered after them, wait for each other."""
    names = [*(f"segment {index}" for index in range(len(plan.segments))), *others]
    graph = {names[index]: {names[k] for k in before} for index, before in enumerate(order)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        yield f"{ring[0]}: waits for itself, a deadlock: {' -> '.join(ring)}"


def laid_out(runs: Iterable[Run]) -> list[Segment]:
    """The segments of these runs, each as early as its devices and tasks are free."""
    free: dict[int | str, int] = {}
    found = []
    for program, devices, rounds, earliest_us, kinds in runs:
        users = claims(devices, program.tasks)
        start = max(earliest_us, *(free.get(user, 0) for user in users))
        end = start + duration_us(program, rounds, kinds)
        found.append(Segment(program.name, devices, rounds, start, end, kinds))
        free |= dict.fromkeys(users, end)
    return found


def first_steps(plan: Plan) -> list[dict[str, int]]:
    """For each segment, the step of each of its tasks that its round 0 trains, or after how many
    it evaluates, with those before the plan."""
    done = {task.name: task.done for task in plan.tasks}
    found = []
    for segment in plan.segments:
        found.append({name: done[name] for name in plan.trained(segment)})
        program = plan.program_of(segment)
        for name in program.tasks if program and not program.evaluates else ():
            done[name] += segment.rounds
    return found


class StepRun(NamedTuple):
    """Steps of a task in a row whose rounds are of one kind: `steps` of them from step `first` on,
    with those before the plan."""

    segment: int
    program: str
    kind: int
    first: int
    steps: int


def task_runs(plan: Plan, task: str) -> Iterator[StepRun]:
    """All steps of a task, run by run."""
    first = plan.task(task).done
    for index, segment in enumerate(plan.segments):
        program = plan.program(segment.program)
        if task not in program.tasks or program.evaluates or not segment.rounds:
            continue
        for kind, rounds in runs(segment):
            yield StepRun(index, segment.program, kind, first, rounds)
            first += rounds
