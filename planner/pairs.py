"""Two tasks that share a device train together where that is shorter than one after the other.

Looked at are neighbours on a device that both have idle time there. Each gets a part of the
memory; what the longer one has left to do follows alone.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.costs import Links
from planner.errors import Infeasible, NoPlanFound
from planner.joint import Pair
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


def together(
    problem: Problem, programs: dict[str, Program], segments: Sequence[Segment], effort: Effort
) -> tuple[list[Together], list[Segment]]:
    """The pairs that pay, and the segments with those pairs in place of their tasks."""
    tasks = {task.name: task for task in problem.tasks}
    pairs: list[Together] = []
    out: list[Segment] = []
    for device in range(problem.devices):
        line = sorted((s for s in segments if s.devices == (device,)), key=lambda s: s.start_us)
        whole = all(s.rounds == tasks[s.program].steps for s in line)
        made = list(_line(problem, tasks, programs, line, effort)) if whole else []
        if not made:
            out += line
            continue
        pairs += made
        out += _laid(line, made, programs, device)
    return pairs, sorted(out, key=lambda s: (s.start_us, s.devices))


def _line(
    problem: Problem,
    tasks: dict[str, Task],
    programs: dict[str, Program],
    line: Sequence[Segment],
    effort: Effort,
) -> Iterator[Together]:
    """Pairs of neighbours on one device, each task in one of them at most."""
    taken: set[str] = set()
    for left, right in pairwise(line):
        names = left.program, right.program
        if taken & set(names) or effort.left <= 0:
            continue
        if not _promising(*(programs[name] for name in names)):
            continue
        alone_us = sum(duration_us(programs[name], tasks[name].steps) for name in names)
        pair = _best(problem, tasks[names[0]], tasks[names[1]], alone_us, effort)
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


def _best(
    problem: Problem, one: Task, other: Task, alone_us: int, effort: Effort
) -> Together | None:
    """The pair's best shares of the memory, when they beat `alone_us`."""
    best: Together | None = None
    for quarters in _SHARES:
        share = problem.device_bytes * quarters // 4
        pair = _tried(problem, one, other, share, alone_us, effort)
        if pair and pair.joint.joint_us < (best.joint.joint_us if best else alone_us):
            best = pair
        if effort.left <= 0:
            break
    return best


def _tried(
    problem: Problem, one: Task, other: Task, share: int, alone_us: int, effort: Effort
) -> Together | None:
    links = Links.of(problem.device)
    parts = {one.name: share, other.name: problem.device_bytes - share}
    found = {}
    try:
        for task in (one, other):
            own = Effort(time.monotonic() + effort.left / 2, effort.seed)
            found[task.name] = Search(task, links, parts[task.name], _OPS).best(own)
    except (Infeasible, NoPlanFound):
        return None
    rounds = [
        Round(f.choice, links, parts[name] - f.choice.reserve_bytes) for name, f in found.items()
    ]
    program = Pair(*rounds).program()
    common = min(one.steps, other.steps)
    longer = one if one.steps > common else other
    left = longer.steps - common
    rest = None
    us = duration_us(program, common)
    if left:
        choice = found[longer.name].choice
        rest = Round(choice, links, problem.device_bytes - choice.reserve_bytes).program()
        us += duration_us(rest, left)
    joint = Joint(program.name, us, alone_us)
    return Together(found, program, rest, common, left, joint)


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
