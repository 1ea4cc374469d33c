"""Two tasks that share a device train together where that is shorter than one after the other.

Looked at are neighbours on a device that both have idle time there. Each gets a part of the
memory; what the longer one has left to do follows alone.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from planner.costs import Links, TaskCosts, shape_of
from planner.errors import Infeasible, NoPlanFound
from planner.joint import Pair
from planner.names import renamed
from planner.problem import Effort, Problem
from planner.rounds import Round
from planner.search import Found, Search
from plans.metrics import duration_us
from plans.schema import Joint, Program, Segment
from profiles.schema import Task

_SHARES = (2, 1, 3)  # quarters of the device's memory for the first of two tasks
_OPS = 10_000  # simulated at most for one task in its share
_WORTH = 20  # a gain of less than 1/n of the time is not looked for


@dataclass(frozen=True)
class Together:
    """A pair's programs: both, and the rest of the longer one, None when they end together."""

    found: dict[str, Found]
    program: Program
    rest: Program | None
    rounds: int
    rest_rounds: int
    joint: Joint


@dataclass(frozen=True)
class _Shared:
    """Two tasks in given shares of the memory: what was found for each, and their program."""

    found: tuple[Found, Found]
    program: Program


@dataclass(frozen=True, eq=False)
class _Tries:
    """What was tried, by the tasks' shapes: tasks of the same shapes differ in their names."""

    problem: Problem
    effort: Effort
    shared: dict[object, _Shared | None] = field(default_factory=dict)
    alone: dict[object, Program] = field(default_factory=dict)

    def share(self, one: Task, other: Task, share: int) -> _Shared | None:
        """`share` of the device's memory for the one, what is left for the other; None when that
        is too little."""
        key = shape_of(one), shape_of(other), share
        if key not in self.shared:
            self.shared[key] = _shared(self.problem, one, other, share, self.effort)
        made = self.shared[key]
        return made and _named(made, one, other)

    def rest(self, found: Found, key: object) -> Program:
        """A program of what is left of a task, which then has the device for itself."""
        choice = found.choice
        name = choice.costs.task.name
        if key not in self.alone:
            links = Links.of(self.problem.device)
            room = self.problem.device_bytes - choice.reserve_bytes
            self.alone[key] = Round(choice, links, room).program()
        made = self.alone[key]
        return made if made.name == name else renamed(made, {made.name: name})


def together(
    problem: Problem, programs: dict[str, Program], segments: Sequence[Segment], effort: Effort
) -> tuple[list[Together], list[Segment]]:
    """The pairs that pay, and the segments with those pairs in place of their tasks."""
    tasks = {task.name: task for task in problem.tasks}
    tries = _Tries(problem, effort)
    pairs: list[Together] = []
    out: list[Segment] = []
    lines: dict[int, list[Segment]] = {device: [] for device in range(problem.devices)}
    for segment in sorted(segments, key=lambda s: s.start_us):
        lines[segment.devices[0]].append(segment)
    for device, line in lines.items():
        whole = all(s.rounds == tasks[s.program].steps for s in line)
        made = list(_line(tries, tasks, programs, line)) if whole else []
        if not made:
            out += line
            continue
        pairs += made
        out += _laid(line, made, programs, device)
    return pairs, sorted(out, key=lambda s: (s.start_us, s.devices))


def _line(
    tries: _Tries, tasks: dict[str, Task], programs: dict[str, Program], line: Sequence[Segment]
) -> Iterator[Together]:
    """Pairs of neighbours on one device, each task in one of them at most."""
    taken: set[str] = set()
    for left, right in pairwise(line):
        names = left.program, right.program
        if taken & set(names) or tries.effort.left <= 0:
            continue
        if not _promising(*(programs[name] for name in names)):
            continue
        alone_us = sum(duration_us(programs[name], tasks[name].steps) for name in names)
        pair = _best(tries, tasks[names[0]], tasks[names[1]], alone_us)
        if pair:
            taken.update(names)
            yield pair


def _promising(one: Program, other: Program) -> bool:
    """Whether the streams of both together leave room for a gain."""
    loads = []
    for stream in ("0.compute", "0.h2d", "0.d2h", "host.0"):
        ops = [op for program in (one, other) for op in program.round if op.stream == stream]
        loads.append(sum(op.end_us - op.start_us for op in ops))
    alone = one.period_us + other.period_us
    return max(loads) * _WORTH < alone * (_WORTH - 1)


def _best(tries: _Tries, one: Task, other: Task, alone_us: int) -> Together | None:
    """The pair's best shares of the memory, when they beat `alone_us`."""
    best: Together | None = None
    for quarters in _SHARES:
        share = tries.problem.device_bytes * quarters // 4
        pair = _tried(tries, one, other, share, alone_us)
        if pair and pair.joint.joint_us < (best.joint.joint_us if best else alone_us):
            best = pair
        if tries.effort.left <= 0:
            break
    return best


def _tried(tries: _Tries, one: Task, other: Task, share: int, alone_us: int) -> Together | None:
    shared = tries.share(one, other, share)
    if shared is None:
        return None
    program, common = shared.program, min(one.steps, other.steps)
    place = int(other.steps > common)  # of the longer one
    left = (one, other)[place].steps - common
    us, rest = duration_us(program, common), None
    if left:
        key = shape_of(one), shape_of(other), share, place
        rest = tries.rest(shared.found[place], key)
        us += duration_us(rest, left)
    found = {task.name: each for task, each in zip((one, other), shared.found, strict=True)}
    joint = Joint(program.name, us, alone_us)
    return Together(found, program, rest, common, left, joint)


def _shared(problem: Problem, one: Task, other: Task, share: int, effort: Effort) -> _Shared | None:
    links = Links.of(problem.device)
    found, rounds = [], []
    try:
        for task, room in ((one, share), (other, problem.device_bytes - share)):
            own = Effort(time.monotonic() + effort.left / 2, effort.seed)
            found.append(Search(task, links, room, _OPS).best(own))
            choice = found[-1].choice
            rounds.append(Round(choice, links, room - choice.reserve_bytes))
    except (Infeasible, NoPlanFound):
        return None
    return _Shared((found[0], found[1]), Pair(*rounds).program())


def _named(shared: _Shared, one: Task, other: Task) -> _Shared:
    """The same for tasks of the same shapes."""
    olds = [found.choice.costs.task.name for found in shared.found]
    if olds == [one.name, other.name]:
        return shared
    found = []
    for old, task in zip(shared.found, (one, other), strict=True):
        choice = replace(old.choice, costs=TaskCosts(task, old.choice.costs.microbatch))
        program = renamed(old.program, {old.program.name: task.name})
        found.append(Found(choice, program, 0, old.complete))
    names = dict(zip(olds, (one.name, other.name), strict=True))
    return _Shared((found[0], found[1]), renamed(shared.program, names))


def _laid(
    line: Sequence[Segment], pairs: Sequence[Together], programs: dict[str, Program], device: int
) -> Iterator[Segment]:
    """The device's segments one after the other, pairs where their first task was."""
    of = {name: pair for pair in pairs for name in pair.found}
    begin = 0
    done: set[str] = set()
    for segment in line:
        pair = of.get(segment.program)
        if pair is None:
            runs = [(programs[segment.program], segment.rounds)]
        elif pair.program.name in done:
            continue
        else:
            done.add(pair.program.name)
            runs = [(pair.program, pair.rounds)]
            runs += [(pair.rest, pair.rest_rounds)] if pair.rest else []
        for program, rounds in runs:
            end = begin + duration_us(program, rounds)
            yield Segment(program.name, (device,), rounds, begin, end)
            begin = end
