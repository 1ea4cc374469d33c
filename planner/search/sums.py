"""Tasks that go on with the last bits that they would have had: gradients are added as before."""

from collections.abc import Sequence

from planner.errors import Infeasible
from planner.inputs import Problem
from planner.search.task import Candidate
from plans.additions import Additions, added


def sums_of(way: Candidate) -> Additions:
    """The additions of gradients of layers that several devices train, by a strategy's programs."""
    layers = [(shard.first, shard.end) for shard in way.strategy.shards]
    return added(way.program, way.strategy.costs.task.name, layers)


def adding_alike(problem: Problem, ways: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
    """The ways without those by which a task that keeps its microbatches would add their gradients
    in another order than it did; Infeasible where none is left."""
    found = []
    for task, own in zip(problem.tasks, ways, strict=True):
        before = problem.additions.get(task.name, ())
        alike = [w for w in own if task.name not in problem.kept or sums_of(w) == before]
        if not alike:
            told = ", ".join(
                f"{a.sum} in layers {a.first_layer} to {a.end_layer - 1}" for a in before
            )
            raise Infeasible(
                f"{task.name}: several devices trained it, which added its microbatches' gradients "
                f"as {told}; no plan that was found does",
                resource="other",
            )
        found.append(alike)
    return found
