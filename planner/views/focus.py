"""Where in a plan to look: the segments, rounds and steps of a task or of a moment."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from plans.order import first_steps
from plans.runlog import RunLog
from plans.schema import Plan, Program, Segment
from plans.timing import PhaseName, RoundKinds, kinds_of, phases, steady_us
from profiles.errors import FormatError

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
    mine = [
        index
        for index, segment in enumerate(plan.segments)
        if runs(plan, segment, task) and not plan.program(segment.program).evaluates
    ]
    if task is not None and step is not None:
        return _of_step(plan, mine, task, step)
    if now := active(plan, at, task) if at is not None else []:
        index = _longest(plan, now)
        segment = plan.segments[index]
        return _focus(plan, index, *place(plan.program(segment.program), segment, at or 0)[:2])
    index = _longest(plan, mine)
    segment = plan.segments[index]
    period = steady_us(plan.program(segment.program), segment) // segment.rounds
    if task is None and (segment.rounds < 2 or 4 * period > plan.prediction.makespan_us):
        return None
    return _focus(plan, index, "round", (segment.rounds - 1) // 2)


def _of_step(plan: Plan, mine: list[int], task: str, step: int) -> Focus:
    firsts = {index: first_steps(plan)[index][task] for index in mine}
    low, end = firsts[mine[0]], firsts[mine[-1]] + plan.segments[mine[-1]].rounds
    if not low <= step < end:
        raise FormatError(
            f"--round {task}:{step}: {task} has the rounds {low} to {end - 1}; give one"
        )
    index = max(index for index in mine if firsts[index] <= step)
    return _focus(plan, index, "round", step - firsts[index])


def _longest(plan: Plan, segments: Iterable[int]) -> int:
    return max(segments, key=lambda k: plan.segments[k].end_us - plan.segments[k].start_us)


def _focus(plan: Plan, index: int, name: PhaseName, number: int) -> Focus:
    segment = plan.segments[index]
    found = [p for p in phases(plan.program(segment.program), segment) if p.name == name]
    phase = next((p for p in found if number < p.first + p.rounds), found[-1])
    begin = phase.start_us + min(number - phase.first, phase.rounds - 1) * phase.period_us
    first = min((op.start_us for op in phase.ops), default=0)
    last = max((op.end_us for op in phase.ops), default=0)
    return Focus(index, name, number, (begin + first, begin + max(last, first + 1)))


def aligned(plan: Plan, log: RunLog, planned: Focus) -> tuple[Window, Window]:
    """Windows of equal length over two rounds, as planned and as they happened, that begin with
    the round in focus."""
    first = planned.round
    ops = [op for op in log.ops if op.segment == planned.segment and first <= op.round <= first + 1]
    begun = planned.window[0]
    segment = plan.segments[planned.segment]
    kinds = kinds_of(plan.program(segment.program))
    period = kinds[RoundKinds(segment)[first]].period_us
    start = min((op.start_us for op in ops if op.round == first), default=begun)
    later = min((op.start_us for op in ops if op.round == first + 1), default=start)
    span = 2 * max(period, later - start)
    return (begun, begun + span), (start, start + span)


def known_task(plan: Plan, task: str | None) -> None:
    """FormatError when the plan has no such task."""
    names = [one.name for one in plan.tasks]
    if task is not None and task not in names:
        raise FormatError(f"the plan has no task {task!r}; it has {', '.join(names)}; give one")


def active(plan: Plan, us: int, task: str | None = None) -> list[int]:
    """The segments that run at `us`, those of `task` only if it is given."""
    return [
        index
        for index, segment in enumerate(plan.segments)
        if segment.start_us <= us < segment.end_us and runs(plan, segment, task)
    ]


def runs(plan: Plan, segment: Segment, task: str | None) -> bool:
    """True when a segment is of this task, or of any."""
    return task is None or task in plan.trained(segment)


def on_devices(devices: Sequence[int]) -> str:
    """`device 0`, `devices 0, 3`, or `devices 0-3, 6`."""
    return f"device{'s' if len(devices) > 1 else ''} {in_ranges(devices)}"


def in_ranges(devices: Sequence[int]) -> str:
    """`0-3, 6`."""
    runs = [
        [device for _, device in run]
        for _, run in groupby(enumerate(devices), key=lambda item: item[1] - item[0])
    ]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)


def place(program: Program, segment: Segment, us: int) -> tuple[PhaseName, int, int]:
    """The phase of a segment at `us`, its earliest unfinished and its latest begun round."""
    _, *rounds, leave = phases(program, segment)
    if us < rounds[0].start_us:
        return "enter", 0, 0
    if us >= leave.start_us:
        return "leave", segment.rounds - 1, segment.rounds - 1
    run = rounds[bisect_right(rounds, us, key=lambda one: one.start_us) - 1]
    ends = run.start_us + kinds_of(program)[run.kind].round_us
    begun = min((us - run.start_us) // run.period_us, run.rounds - 1)
    unfinished = max(-((ends - us - 1) // run.period_us), 0)
    return "round", run.first + min(unfinished, begun), run.first + begun
