"""Two tasks that share a device: their common programs, each task in a part of the memory.

What a task has left to do it does alone, by the same choice; and one part of the memory is one
choice, so that a task may share its device with one task after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from planner import workers
from planner.answers import Key, Own
from planner.costs import Links
from planner.errors import Infeasible, NoPlanFound
from planner.joint import Pair
from planner.names import renamed
from planner.problem import Effort, Kind
from planner.rounds import Round
from planner.search import Found, Search, best_of
from plans.metrics import duration_us
from plans.schema import Joint, Program
from profiles.schema import Task

SHARES = (2, 1, 3)  # quarters of the device's memory for the first of two tasks
_OPS = 10_000  # simulated at most for one task in its share
_STREAMS = ("0.compute", "0.h2d", "0.d2h", "host.0")


@dataclass(frozen=True)
class Together:
    """A program beside the tasks' own: of tasks that share a device, or of one of these tasks by
    itself; what each of them does in it. joint: None for a task by itself."""

    found: dict[str, Found]
    program: Program
    kind: int = 0  # place of the kind of devices that it is for
    joint: Joint | None = None


@dataclass(frozen=True)
class Shared:
    """Two tasks in given shares of the memory: what was found for each, and their program."""

    found: tuple[Found, Found]
    program: Program


Part = tuple[Key, int]  # a shape, and the quarters of the memory that it has
Couple = tuple[Key, Key]


@dataclass(frozen=True, eq=False)
class Tries:
    """What was built so far, by the tasks' shapes: tasks of the same shapes differ in names."""

    parts: dict[Part, Found | None] = field(default_factory=dict)
    shared: dict[tuple[Key, Key, int], Shared | None] = field(default_factory=dict)
    rests: dict[Part, Program] = field(default_factory=dict)

    def of(self, couple: Couple) -> dict[int, Shared]:
        """What was built for two shapes, by the first one's quarters."""
        made = {share: self.shared.get((*couple, share)) for share in SHARES}
        return {share: one for share, one in made.items() if one}

    def knows(self, couple: Couple) -> bool:
        return all((*couple, share) in self.shared for share in SHARES)


def optimistic_us(one: Program, other: Program) -> int:
    """About what a common round takes at least: what each task takes with all of the memory; and
    the busiest stream, if each moved and computed no more than it does then."""
    loads = [one.period_us, other.period_us]
    for stream in _STREAMS:
        ops = [op for program in (one, other) for op in program.round if op.stream == stream]
        loads.append(sum(op.end_us - op.start_us for op in ops))
    return max(loads)


def build(tries: Tries, own: Own, couples: Sequence[Couple], effort: Effort, jobs: int) -> None:
    """Programs of these shapes together, for several shares of the memory, into `tries`.

    Where one does not fit its share, or time is up, there is none.
    """
    kinds = [replace(kind, tasks=()) for kind in own.problem.kinds]
    splits = [(a, b, share) for a, b in couples for share in SHARES]
    parts = [part for a, b, share in splits for part in ((a, share), (b, 4 - share))]
    new = [part for part in dict.fromkeys(parts) if part not in tries.parts]
    asked = [(kinds[key[0]], own.shapes.first[key], share, own.rooms[key]) for key, share in new]
    half = replace(effort, deadline=effort.deadline - effort.left / 2)
    tries.parts.update(zip(new, workers.each(_part, asked, half, jobs), strict=True))
    fit, rounds = [], []
    for a, b, share in splits:
        one, other = tries.parts[a, share], tries.parts[b, 4 - share]
        tries.shared[a, b, share] = None
        if one and other:
            fit.append((a, b, share))
            rounds.append((kinds[a[0]], share, one, _second(other) if a == b else other))
    tries.shared.update(zip(fit, workers.each(_together, rounds, effort, jobs), strict=True))


def _part(asked: tuple[Kind, Task, int, int], effort: Effort) -> Found | None:
    """The best for a task in so many quarters of a device, None where that is too little."""
    kind, task, quarters, host = asked
    room = kind.device_bytes * quarters // 4
    search = Search(task, Links.of(kind.device), room, _OPS, host_bytes=host)
    try:
        return best_of(search, effort)
    except (Infeasible, NoPlanFound):
        return None


def _second(found: Found) -> Found:
    """What was found, as if for another task of the shape."""
    task = found.choice.costs.task
    return _named(found, structs.replace(task, name=f"{task.name}-"))


def _together(asked: tuple[Kind, int, Found, Found], effort: Effort) -> Shared | None:
    kind, share, *both = asked
    if effort.left <= 0:
        return None
    links, rounds = Links.of(kind.device), []
    for found, quarters in zip(both, (share, 4 - share), strict=True):
        room = kind.device_bytes * quarters // 4
        rounds.append(Round(found.choice, links, room - found.choice.reserve_bytes))
    either = Pair(*rounds), Pair(*rounds[::-1])
    return Shared((both[0], both[1]), min(either, key=lambda pair: pair.period_us).program())


def together(
    tries: Tries, own: Own, couple: Couple, share: int, tasks: tuple[Task, Task], rounds: int
) -> Together:
    """What was built for two shapes, for tasks of these shapes as profiled on its kind, which
    train so many rounds together."""
    made = tries.shared[(*couple, share)]
    if made is None:
        raise ValueError(f"{tasks[0].name} and {tasks[1].name} have no program in common")
    found = {task.name: _named(one, task) for one, task in zip(made.found, tasks, strict=True)}
    olds = [one.choice.costs.task.name for one in made.found]
    program = renamed(made.program, dict(zip(olds, found, strict=True)))
    alone_us = sum(duration_us(own.of[key].program, rounds) for key in couple)
    joint = Joint(program.name, duration_us(program, rounds), alone_us)
    return Together(found, program, couple[0][0], joint)


def apart(tries: Tries, own: Own, part: Part, task: Task) -> Together:
    """What a task does by itself that shares a device at other times: the same, in all memory."""
    found = tries.parts[part]
    if found is None:
        raise ValueError(f"{task.name} does not fit {part[1]} quarters of its device")
    mine = _named(found, task)
    made = rest(tries, own, part)
    return Together({task.name: mine}, renamed(made, {made.name: task.name}), part[0][0])


def rest(tries: Tries, own: Own, part: Part) -> Program:
    """The program of a shape by itself, by the choice for a part of the memory."""
    found = tries.parts[part]
    if part not in tries.rests and found:
        kind, choice = own.problem.kinds[part[0][0]], found.choice
        room = kind.device_bytes - choice.reserve_bytes
        tries.rests[part] = Round(choice, Links.of(kind.device), room).program()
    return tries.rests[part]


def _named(found: Found, task: Task) -> Found:
    """The same for a task of the same shape."""
    old = found.choice.costs.task.name
    if old == task.name:
        return found
    choice = replace(found.choice, costs=replace(found.choice.costs, task=task))
    return Found(choice, renamed(found.program, {old: task.name}), 0, found.complete)
