"""The rest of a plan of which a run has done a part, up to where its tasks' states were kept.

    a  │  0: 10 rounds  │  2: 10 rounds  │       a is kept after 13 steps: segment 0 has 0 rounds
    b  │  1: 10 rounds           │               left, and segment 2 has 7

Segments keep their numbers; one of 0 rounds is done. The programs are those of the plan, and the
checker proves them for any number of rounds, so that the rest of a sound plan is sound.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from plans.order.segments import first_steps
from plans.schema import Plan, Segment
from plans.timing import part
from profiles.errors import FormatError
from profiles.schema import Count, Struct


class Reached(Struct, frozen=True):
    """The point that a run has come to. done: each task's steps, with those before the plan; owed:
    the tasks whose evaluation after these steps is missing."""

    done: dict[str, Count]
    owed: tuple[str, ...] = ()


def rest(plan: Plan, reached: Reached) -> Plan:
    """The plan with the steps and rounds that are left; FormatError where nobody can go on with it
    from there."""
    tasks = []
    for task in plan.tasks:
        done, evaluation = reached.done[task.name], task.evaluation
        if evaluation:
            evaluation = replace(evaluation, owed=task.name in reached.owed)
        left = task.done + task.steps - done
        tasks.append(replace(task, done=done, steps=left, evaluation=evaluation))
    return replace(plan, tasks=tuple(tasks), segments=tuple(_segments(plan, reached)))


def _segments(plan: Plan, reached: Reached) -> Iterator[Segment]:
    for index, (segment, steps) in enumerate(zip(plan.segments, first_steps(plan), strict=True)):
        evaluates = plan.program(segment.program).evaluates
        made = set()
        for name, first in steps.items():
            done = reached.done[name]
            if evaluates:
                over = first < done or (first == done and name not in reached.owed)
                made.add(segment.rounds if over else 0)
            else:
                made.add(min(max(done - first, 0), segment.rounds))
        if len(made) > 1:
            held = ", ".join(f"{name} after step {reached.done[name]}" for name in steps)
            raise FormatError(f"segment {index} has tasks that were kept at several points: {held}")
        done, left = max(made), segment.rounds - max(made)
        yield replace(segment, rounds=left, kinds=part(segment.kinds, done, left))
