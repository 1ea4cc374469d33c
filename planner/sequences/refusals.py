"""Refusals of what cannot be asked for together with lengths of samples: one line each."""

from collections.abc import Iterator

from planner.inputs import Policy, Problem
from profiles.curves import draws_of
from profiles.errors import FormatError
from profiles.schema import Task


def with_lengths(problem: Problem, policy: Policy = "gantry") -> bool:
    """True if a task of the problem has lengths, and all that is asked goes with them; FormatError
    where it does not."""
    tasks = [task for task in problem.tasks if task.lengths]
    for flag, given in (
        ("packing", problem.packing != "auto"),
        ("reorder-window", problem.reorder_window > 1),
    ):
        if given and not tasks:
            raise FormatError(
                f"--{flag} is about tasks whose samples have lengths, and none has; leave it out"
            )
    layout = problem.layout
    if layout and len(layout.pipelines) > 1 and len(tasks) < len(problem.tasks):
        raise FormatError(
            f"--layout {layout} has pipelines side by side, which is for tasks whose samples have "
            "lengths; give one of depth x replicas like 2x2"
        )
    for task in tasks:
        if wrong := next(_wrong(problem, task, policy), None):
            raise FormatError(f"{task.name}: its samples have lengths, {wrong}")
    return bool(tasks)


def _wrong(problem: Problem, task: Task, policy: Policy) -> Iterator[str]:
    """Why not, the reason and the remedy."""
    assert task.lengths
    if task.name not in problem.lengths:
        yield "which are not given; give `Problem.lengths`, from `profiles.lengths.load`"
    for number, layer in enumerate(task.layers):
        if draws_of(layer.costs) is None:
            yield (
                f"but the random draws of layer {number} ({layer.name}) are no constant and so "
                "many for each token; leave out what draws otherwise, as dropout of attention "
                "does, and profile again"
            )
    if policy == "hydra":
        yield "which --policy hydra does not know; leave it out"
    if len(problem.kinds) > 1:
        yield "for which devices are of one kind; give one profile"
    if problem.nodes > 1:
        yield "for which devices are of one machine; give --devices instead of --nodes"
    if problem.layout and not problem.layout.even:
        yield (
            f"for which a --layout has equally many replicas of every stage; {problem.layout} "
            "has not"
        )
    if task.lengths.why_not and problem.packing not in ("auto", "pad"):
        yield (
            f"of which --packing {problem.packing} puts several into a microbatch, but "
            f"{task.lengths.why_not}; give --packing pad"
        )
