"""Which tasks train together on one base: all of it once a step for the microbatches of all."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from planner.inputs import Problem
from profiles.schema import Task

Grouping = Sequence[Sequence[str]]
"""The tasks of each group, by name. Each task with a base is in one."""


class Base(NamedTuple):
    """The parameters that a task does not train: the hash of their content, and their bytes in
    each layer."""

    sha256: str | None
    sizes: tuple[int, ...]


def base_of(task: Task) -> Base:
    """The base of a task; equal for tasks that have the same one."""
    return Base(task.base, tuple(layer.param_bytes - layer.grad_bytes for layer in task.layers))


def groupings(problem: Problem) -> list[Grouping]:
    """The ways to group tasks that are worth a plan: all of a base together, as many as there are
    devices, and each by itself. Empty where no two tasks have a base in common.

    More tasks in a group divide the time of the link by their number, and take more memory for what
    each has of its own; fewer leave devices to other groups. Tasks that cannot train together have
    their base once in the host store, each in a group of its own."""
    if unasked(problem):
        return []
    alike: dict[Base, dict[Hashable, list[str]]] = {}
    for task in problem.tasks:
        if task.base and not alone(problem, task):
            kinds = alike.setdefault(base_of(task), {})
            key = task.name if whole(task) else tuple(facts(problem, task.name).values())
            kinds.setdefault(key, []).append(task.name)
    groups = [names for kinds in alike.values() if _several(kinds) for names in kinds.values()]
    most, devices = max(map(len, groups), default=0), problem.devices
    sizes = {1, most, -(-most // devices), -(-most // (2 * devices))} if groups else set[int]()
    return [
        [names[at : at + size] for names in groups for at in range(0, len(names), size)]
        for size in sorted(sizes, reverse=True)
    ]


def _several(kinds: dict[Hashable, list[str]]) -> bool:
    return sum(map(len, kinds.values())) > 1


def unasked(problem: Problem) -> str:
    """The reason why no tasks of the problem may train together; "": some may."""
    for given, why in (
        (problem.objective != "makespan", f"--objective {problem.objective} plans each by itself"),
        (problem.wants, "a start, deadline or priority plans each by itself"),
        (problem.layout, "--layout plans each by itself"),
        (problem.nodes > 1, "several nodes plan each by itself"),
        (any(t.lengths for t in problem.tasks), "samples with lengths plan each by itself"),
    ):
        if given:
            return why
    return ""


def alone(problem: Problem, task: Task) -> str:
    """The reason why a task has its base within its other parameters; "": it has it apart."""
    if problem.additions.get(task.name):
        return "its microbatches add up as those of an earlier plan"
    return "it trains what is tied" * any(task.tie_bytes)


def whole(task: Task) -> str:
    """The reason why no microbatch of others may run between those of a task; "": they may."""
    if task.parts.together:
        return "its batch stays whole"
    known = all(cost.rng_draws is not None for layer in task.layers for cost in layer.costs)
    return "" if known else "its layers draw random numbers of which the count changes"


def facts(problem: Problem, name: str) -> dict[str, Hashable]:
    """The properties of a task that all tasks of a group share, each by its name in messages."""
    at = [task.name for task in problem.tasks].index(name)
    task, kinds = problem.tasks[at], [kind.tasks[at] for kind in problem.kinds]
    costs = [[cost for layer in own.layers for cost in layer.costs] for own in kinds]
    return {
        "steps": task.steps,
        "batch": task.batch,
        "precision": task.precision,
        "step to go on from": problem.done.get(name, 0),
        "earlier microbatch": problem.microbatch.get(name, 0),
        "evaluation": task.evaluation,
        "tied layers": task.ties,
        "layers": tuple(base_of(own) for own in kinds),
        "measured microbatches": tuple(batch.microbatch for batch in task.batches),
        "boundary": tuple((cost.in_bytes, cost.out_bytes) for own in costs for cost in own),
    }
