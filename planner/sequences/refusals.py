"""Refusals of what cannot be asked for together with lengths of samples: one line each."""

from collections.abc import Iterator

from planner.inputs import Problem
from planner.packing import How
from planner.sequences.choose import Wanted
from planner.sequences.mix import Mix
from profiles.errors import FormatError
from profiles.schema import Task


def with_lengths(problem: Problem) -> bool:
    """True if a task of the problem has lengths, and all that is asked goes with them; FormatError
    where it does not."""
    task = next((task for task in problem.tasks if task.lengths), None)
    if task is None:
        if problem.packing != "auto":
            raise FormatError(
                "--packing is about tasks whose samples have lengths, and none has; leave it out"
            )
        return False
    if wrong := next(_wrong(problem, task), None):
        raise FormatError(f"{task.name}: its samples have lengths, {wrong}")
    return True


def _wrong(problem: Problem, task: Task) -> Iterator[str]:
    """Why not, the reason and the remedy."""
    if len(problem.tasks) > 1:
        count = len(problem.tasks)
        yield f"so it is planned alone, but the profile has {count} tasks; profile it alone"
    if len(problem.kinds) > 1:
        yield "for which devices are of one kind; give one profile"
    if problem.nodes > 1:
        yield "for which devices are of one machine; give --devices instead of --nodes"
    if problem.link_groups:
        yield "for which each device has its own link; leave out --link-groups"
    if problem.layout and not problem.layout.even:
        yield (
            f"for which a --layout has equally many replicas of every stage; {problem.layout} "
            "has not"
        )
    if problem.layout and problem.layout.devices != problem.devices:
        needed, there = problem.layout.devices, problem.devices
        yield f"for which --layout {problem.layout} needs --devices {needed}, not {there}"
    if problem.order != "auto" or problem.quantile:
        yield "for which passes are in order 1f1b; leave out --order and --objective-quantile"
    if problem.wants or problem.objective != "makespan" or problem.segment_steps:
        yield (
            "for which there is one segment from the beginning on; leave out --objective, --start, "
            "--deadline, --priority and --segment-steps"
        )


def wanted(problem: Problem, task: Task) -> Wanted:
    """The mixes and packings that are looked at; FormatError for a packing that the model cannot
    have."""
    assert task.lengths
    why_not, packing = task.lengths.why_not, problem.packing
    if why_not and packing not in ("auto", "pad"):
        raise FormatError(
            f"{task.name}: --packing {packing} puts several sequences into a microbatch, but "
            f"{why_not}; give --packing pad"
        )
    layout = problem.layout
    found = [Mix((layout.depth,) * layout.replicas[0])] if layout else []
    how: How | None = "alone" if why_not else None if packing == "auto" else packing
    return Wanted(problem.devices, found, how)
