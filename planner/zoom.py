"""Which part of a plan is worth a close-up: a steady round, the one asked for, that of a moment."""

from collections.abc import Iterable
from typing import NamedTuple

from planner.moments import (
    PhaseName,
    active,
    known_task,
    place,
    program_of,
    training,
)
from plans.metrics import phase_starts
from plans.runlog import RunLog
from plans.schema import Plan
from plans.segments import first_steps
from profiles.errors import FormatError

Window = tuple[int, int]


class Zoom(NamedTuple):
    """A phase of a segment (round `number`, or enter or leave), and when it is planned: from its
    first op to its last."""

    segment: int
    phase: PhaseName
    number: int
    window: Window


def steady(plan: Plan) -> Zoom | None:
    """A round in the middle of the longest segment; None when two are most of the run."""
    index = longest(plan, range(len(plan.segments)))
    segment = plan.segments[index]
    found = zoom(plan, index, "round", (segment.rounds - 1) // 2)
    period = program_of(plan, segment).period_us
    if segment.rounds < 2 or 4 * period > plan.prediction.makespan_us:
        return None
    return found


def of_task(plan: Plan, task: str, step: int | None = None) -> Zoom:
    """The round that trains `step` of a task, or the middle one of the task's longest segment.

    FormatError when the plan has no such task or step.
    """
    known_task(plan, task)
    names = training(plan, task)
    mine = [index for index, segment in enumerate(plan.segments) if segment.program in names]
    if step is None:
        index = longest(plan, mine)
        return zoom(plan, index, "round", (plan.segments[index].rounds - 1) // 2)
    steps = first_steps(plan)
    firsts = {index: steps[index][task] for index in mine}
    low, end = firsts[mine[0]], firsts[mine[-1]] + plan.segments[mine[-1]].rounds
    if not low <= step < end:
        raise FormatError(f"--round {task}:{step}: {task} has the rounds {low} to {end - 1}")
    index = max(index for index in mine if firsts[index] <= step)
    return zoom(plan, index, "round", step - firsts[index])


def of_moment(plan: Plan, us: int, task: str | None = None) -> Zoom | None:
    """The round, or enter or leave, that runs at `us` in the longest segment there, or in that of
    `task`; None when none runs."""
    found = active(plan, us, task)
    if not found:
        return None
    index = longest(plan, found)
    phase, number, _ = place(program_of(plan, plan.segments[index]), plan.segments[index], us)
    return zoom(plan, index, phase, number)


def longest(plan: Plan, segments: Iterable[int]) -> int:
    """The one of these segments that takes the most time."""
    return max(segments, key=lambda k: plan.segments[k].end_us - plan.segments[k].start_us)


def zoom(plan: Plan, index: int, phase: PhaseName, number: int) -> Zoom:
    """That phase of segment `index`."""
    segment = plan.segments[index]
    program = program_of(plan, segment)
    enter, start, leave = phase_starts(program, segment, number)
    base = {"enter": enter, "round": start, "leave": leave}[phase]
    ops = {"enter": program.enter, "round": program.round, "leave": program.leave}[phase]
    first = min((op.start_us for op in ops), default=0)
    last = max((op.end_us for op in ops), default=0)
    return Zoom(index, phase, number, (base + first, base + max(last, first + 1)))


def aligned(plan: Plan, log: RunLog, planned: Zoom) -> tuple[Window, Window]:
    """Windows of equal length over two rounds, as planned and as they happened, that begin with
    the zoom's round."""
    first = planned.number
    ops = [op for op in log.ops if op.segment == planned.segment and first <= op.round <= first + 1]
    begun = planned.window[0]
    period = program_of(plan, plan.segments[planned.segment]).period_us
    start = min((op.start_us for op in ops if op.round == first), default=begun)
    later = min((op.start_us for op in ops if op.round == first + 1), default=start)
    span = 2 * max(period, later - start)
    return (begun, begun + span), (start, start + span)
