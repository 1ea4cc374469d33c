"""Which tasks train together on one base: all of it once a step for the microbatches of all."""

from collections.abc import Hashable, Sequence

from planner.inputs import Problem
from profiles.schema import Task

Grouping = Sequence[Sequence[str]]
"""The tasks of each group, by name. Each task with a base is in one."""


def groupings(problem: Problem) -> list[Grouping]:
    """The ways to group tasks that are worth a plan: all of a base together, as many as there are
    devices, and each by itself. Empty where no two tasks have a base in common.

    More tasks in a group divide the time of the link by their number, and take more memory for what
    each has of its own; fewer leave devices to other groups."""
    if problem.objective != "makespan" or problem.wants or problem.layout or problem.nodes > 1:
        return []
    bases: dict[Hashable, list[str]] = {}
    for at, task in enumerate(problem.tasks):
        if task.base is not None and _joins(problem, task):
            bases.setdefault(_alike(problem, at), []).append(task.name)
    groups = [names for names in bases.values() if len(names) > 1]
    most, devices = max(map(len, groups), default=0), problem.devices
    sizes = {1, most, -(-most // devices), -(-most // (2 * devices))} if groups else set[int]()
    return [
        [names[at : at + size] for names in groups for at in range(0, len(names), size)]
        for size in sorted(sizes, reverse=True)
    ]


def _joins(problem: Problem, task: Task) -> bool:
    """True if its microbatches may run between those of others: they have no lengths, add up to the
    batch in the usual order, and draw as often each time; what is tied is not trained."""
    known = all(cost.rng_draws is not None for layer in task.layers for cost in layer.costs)
    bound = problem.additions.get(task.name) or any(task.tie_bytes)
    return known and not (task.lengths or task.parts.together or bound)


def _alike(problem: Problem, at: int) -> Hashable:
    """Equal for tasks that could be one: of one base that lies in equal layers."""
    task = problem.tasks[at]
    layers = [
        (layer.param_bytes - layer.grad_bytes, *((c.in_bytes, c.out_bytes) for c in layer.costs))
        for kind in problem.kinds
        for layer in kind.tasks[at].layers
    ]
    sizes = [batch.microbatch for batch in task.batches]
    before = problem.done.get(task.name, 0), problem.microbatch.get(task.name, 0)
    said = task.base, task.steps, task.batch, task.precision, task.evaluation, task.ties
    return *said, *before, *sizes, *layers
