"""Segments in the order of the plan: which waits for which, and how many steps are done by then.

Segments that share a device or a task run one after the other:

    device 0   |  0: a      |  2: b  |        2 waits for 0 (device 0) and for 1 (task b)
    device 1   |  1: b  |
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from plans.schema import Plan, Program, Segment
from plans.timing import Interval, Runs, duration_us, overlaps, runs, union
from plans.view import stored


class Run(NamedTuple):
    """A segment to be: its program, devices, rounds, when it may begin at the soonest, and the runs
    of kinds of its rounds, as a segment has them."""

    program: Program
    devices: tuple[int, ...]
    rounds: int
    earliest_us: int = 0
    kinds: Runs = ()


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
    """For each segment the latest earlier one on each of its devices and tasks; where tasks wait on
    the disk, also of each task that has host bytes of its own."""
    shared = rivals(plan)
    return predecessors(
        [
            *claims(one.devices, plan.trained(one)),
            *(pair for name in plan.trained(one) for pair in shared.get(name, ())),
        ]
        for one in plan.segments
    )


def runs_of(plan: Plan) -> dict[str, int]:
    """For each program, as bits of an integer, the segments that run it."""
    found = dict.fromkeys((program.name for program in plan.programs), 0)
    for index, segment in enumerate(plan.segments):
        found[segment.program] |= 1 << index
    return found


def ancestors(plan: Plan) -> list[int]:
    """For each segment, as bits of an integer, the segments that surely ended before it."""
    ended: list[int] = []
    for before in waits_for(plan):
        ended.append(0)
        for index in before:
            ended[-1] |= ended[index] | 1 << index
    return ended


def regions(plan: Plan) -> dict[str, list[Interval]]:
    """Host bytes of every task: what is kept of it, and all that its ops touch."""
    buffers = {buffer.name: buffer for buffer in plan.host.buffers}
    used = {task.name: {name for name in stored(task) if name in buffers} for task in plan.tasks}
    for program in plan.programs:
        for op in program.ops:
            names = {*op.reads.values(), *op.writes.values()}
            used.get(op.id.partition(".")[0], set()).update(names & buffers.keys())
    return {
        task: union((b.offset, b.offset + b.bytes) for b in map(buffers.__getitem__, names))
        for task, names in used.items()
    }


def meeting(spans: Iterable[tuple[int, int, str]]) -> dict[str, set[str]]:
    """For each name of these spans, from a byte to before another, the others that share bytes with
    it."""
    every = list(spans)
    found: dict[str, set[str]] = {name: set() for *_, name in every}
    for (*_, one), (*_, other) in overlaps(every):
        if one != other:
            found[one].add(other)
            found[other].add(one)
    return found


Rivals = dict[str, set[tuple[str, str]]]
"""For every task the pairs that it makes with tasks that have host bytes of its own."""


def rivals(plan: Plan) -> Rivals:
    """The pairs of a plan's tasks; none in a plan in which no task waits on the disk."""
    if all(one.read_us is None and one.write_us is None for one in plan.segments):
        return {}
    met = meeting((*span, name) for name, own in regions(plan).items() for span in own)
    return {
        name: {(min(name, other), max(name, other)) for other in others}
        for name, others in met.items()
    }


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
        program = plan.program(segment.program)
        for name in program.tasks if not program.evaluates else ():
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
