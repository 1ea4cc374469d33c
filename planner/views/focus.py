"""Where in a plan to look: the segments, rounds and steps of a task."""

from typing import NamedTuple

from plans.order import first_steps
from plans.runlog import RunLog
from plans.schema import Plan
from plans.timing import RoundKinds, kinds_of, phases, rounds_us
from profiles.errors import FormatError

Window = tuple[int, int]


class Focus(NamedTuple):
    """A round of a segment to draw close up, and its window from the first op to the last."""

    segment: int
    round: int
    window: Window


def focus(plan: Plan, task: str | None = None, step: int | None = None) -> Focus | None:
    """The round that trains `step` of a task; else the middle round of the longest segment, of
    `task` if given.

    None where nothing is asked for and rounds are most of the run. FormatError when the plan has
    no such task or step.
    """
    known_task(plan, task)
    mine = [
        index
        for index, segment in enumerate(plan.segments)
        if task in (None, *plan.trained(segment)) and not plan.program(segment.program).evaluates
    ]
    if task is not None and step is not None:
        return _of_step(plan, mine, task, step)
    index = max(mine, key=lambda k: plan.segments[k].end_us - plan.segments[k].start_us)
    segment = plan.segments[index]
    period = rounds_us(plan.program(segment.program), segment) // segment.rounds
    if task is None and (segment.rounds < 2 or 4 * period > plan.prediction.makespan_us):
        return None
    return _focus(plan, index, (segment.rounds - 1) // 2)


def _of_step(plan: Plan, mine: list[int], task: str, step: int) -> Focus:
    firsts = {index: first_steps(plan)[index][task] for index in mine}
    low, end = firsts[mine[0]], firsts[mine[-1]] + plan.segments[mine[-1]].rounds
    if not low <= step < end:
        raise FormatError(
            f"--round {task}:{step}: {task} has the rounds {low} to {end - 1}; give one"
        )
    index = max(index for index in mine if firsts[index] <= step)
    return _focus(plan, index, step - firsts[index])


def _focus(plan: Plan, index: int, number: int) -> Focus:
    segment = plan.segments[index]
    _, *rounds, _ = phases(plan.program(segment.program), segment)
    phase = next(one for one in rounds if number < one.first + one.rounds)
    begin = phase.start_us + (number - phase.first) * phase.period_us
    first = min((op.start_us for op in phase.ops), default=0)
    last = max((op.end_us for op in phase.ops), default=0)
    return Focus(index, number, (begin + first, begin + max(last, first + 1)))


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
