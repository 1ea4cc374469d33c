"""Where in a plan to look: the segments, rounds and steps of a task or of a moment."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from plans.metrics import DISK, phase_starts
from plans.runlog import RunLog
from plans.schema import Plan, Program, Segment
from plans.segments import first_steps
from profiles.errors import FormatError
from profiles.units import LARGEST

PhaseName = Literal["enter", "round", "leave"]
Window = tuple[int, int]


class Focus(NamedTuple):
    """A phase of a segment to draw close up, and its window from the first op to the last."""

    segment: int
    phase: PhaseName
    round: int  # 0 in enter, the last in leave
    window: Window


def focus(
    plan: Plan, task: str | None = None, step: int | None = None, at: int | None = None
) -> Focus | None:
    """The round that trains `step` of a task; else the round, or enter or leave, that runs at the
    moment `at`; else the middle round of the longest segment; in both cases of `task` if given.

    None where nothing is asked for and rounds are most of the run. FormatError when the plan has
    no such task or step.
    """
    known_task(plan, task)
    names = training(plan, task)
    mine = [n for n, segment in enumerate(plan.segments) if segment.program in names]
    if task is not None and step is not None:
        return _of_step(plan, mine, task, step)
    if now := active(plan, at, task) if at is not None else []:
        index = _longest(plan, now)
        segment = plan.segments[index]
        return _focus(plan, index, *place(plan.program(segment.program), segment, at or 0)[:2])
    index = _longest(plan, mine)
    segment = plan.segments[index]
    period = plan.program(segment.program).period_us
    if task is None and (segment.rounds < 2 or 4 * period > plan.prediction.makespan_us):
        return None
    return _focus(plan, index, "round", (segment.rounds - 1) // 2)


def _of_step(plan: Plan, mine: list[int], task: str, step: int) -> Focus:
    firsts = {index: first_steps(plan)[index][task] for index in mine}
    low, end = firsts[mine[0]], firsts[mine[-1]] + plan.segments[mine[-1]].rounds
    if not low <= step < end:
        raise FormatError(f"--round {task}:{step}: {task} has the rounds {low} to {end - 1}")
    index = max(index for index in mine if firsts[index] <= step)
    return _focus(plan, index, "round", step - firsts[index])


def _longest(plan: Plan, segments: Iterable[int]) -> int:
    return max(segments, key=lambda k: plan.segments[k].end_us - plan.segments[k].start_us)


def _focus(plan: Plan, index: int, phase: PhaseName, number: int) -> Focus:
    segment = plan.segments[index]
    program = plan.program(segment.program)
    starts = dict(zip(_PHASES, phase_starts(program, segment, number), strict=True))
    phases = (program.enter, program.round, program.leave)
    ops = dict(zip(_PHASES, phases, strict=True))[phase]
    first = min((op.start_us for op in ops), default=0)
    last = max((op.end_us for op in ops), default=0)
    base = starts[phase]
    return Focus(index, phase, number, (base + first, base + max(last, first + 1)))


_PHASES: tuple[PhaseName, ...] = ("enter", "round", "leave")


def aligned(plan: Plan, log: RunLog, planned: Focus) -> tuple[Window, Window]:
    """Windows of equal length over two rounds, as planned and as they happened, that begin with
    the round in focus."""
    first = planned.round
    ops = [op for op in log.ops if op.segment == planned.segment and first <= op.round <= first + 1]
    begun = planned.window[0]
    period = plan.program(plan.segments[planned.segment].program).period_us
    start = min((op.start_us for op in ops if op.round == first), default=begun)
    later = min((op.start_us for op in ops if op.round == first + 1), default=start)
    span = 2 * max(period, later - start)
    return (begun, begun + span), (start, start + span)


def known_task(plan: Plan, task: str | None) -> None:
    """FormatError when the plan has no such task."""
    names = [one.name for one in plan.tasks]
    if task is not None and task not in names:
        raise FormatError(f"the plan has no task {task!r}; it has {', '.join(names)}")


def active(plan: Plan, us: int, task: str | None = None) -> list[int]:
    """The segments that run at `us`, those of `task` only if it is given."""
    mine = programs_of(plan, task)
    return [
        index
        for index, segment in enumerate(plan.segments)
        if segment.start_us <= us < segment.end_us and segment.program in mine
    ]


def programs_of(plan: Plan, task: str | None) -> set[str]:
    """The names of a task's programs, or of all."""
    return {one.name for one in plan.programs if task is None or task in one.tasks}


def training(plan: Plan, task: str | None) -> set[str]:
    """The names of the programs that train a task, or any."""
    return programs_of(plan, task) - {one.name for one in plan.programs if one.evaluates}


def on_devices(devices: tuple[int, ...]) -> str:
    """`device 0`, or `devices 0, 3`."""
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def place(program: Program, segment: Segment, us: int) -> tuple[PhaseName, int, int]:
    """The phase of a segment at `us`, its earliest unfinished and its latest begun round."""
    _, first, leave = phase_starts(program, segment, 0)
    last = segment.rounds - 1
    if us < first:
        return "enter", 0, 0
    if us >= leave:
        return "leave", last, last
    period = max(program.period_us, 1)
    begun = min((us - first) // period, last)
    unfinished = max(-((first + program.round_us - us - 1) // period), 0)
    return "round", min(unfinished, begun), begun


def rank(stream: str) -> tuple[int, int]:
    """(device, place among its streams, compute first); `host.1` belongs to device 1, the disk
    comes after all devices."""
    if stream == DISK:
        return LARGEST, 0
    left, right = stream.split(".")
    device, kind = (right, left) if left == "host" else (left, right)
    return int(device), ("compute", "h2d", "d2h", "p2p", "host").index(kind)
