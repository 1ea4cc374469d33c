"""Tasks that go on with the last bits that they would have had: gradients are added as before."""

from planner.errors import Infeasible
from planner.inputs import Problem
from planner.search.task import Candidate
from planner.shards import Planned
from plans.additions import Additions, added
from plans.schema import Program
from profiles.schema import Task


def sums_of(program: Program, strategy: Planned) -> Additions:
    """The additions of gradients of layers that several devices train, by a strategy's program."""
    layers = [(shard.first, shard.end) for shard in strategy.shards]
    return added(program, strategy.costs.task.name, layers)


def teams_of(task: Task, before: Additions) -> list[int]:
    """By layer, the devices whose sums were added; 0 where there is nothing to add."""
    teams = [int(layer.grad_bytes > 0) for layer in task.layers]
    for one in before:
        for n in range(one.first_layer, one.end_layer):
            teams[n] = one.sum.count(")+(") + 1
    return teams


def adds_alike(problem: Problem, way: Candidate) -> None:
    """Infeasible where a task that keeps its microbatches would add their gradients in another
    order than it did."""
    name = way.strategy.costs.task.name
    before, count = problem.additions.get(name), way.program.devices
    if before is not None and sums_of(way.program, way.strategy) != before:
        told = ", ".join(f"{a.sum} in layers {a.first_layer} to {a.end_layer - 1}" for a in before)
        raise Infeasible(
            f"{name}: several devices trained it, which added its microbatches' gradients as "
            f"{told}; no plan that was found on {count} device(s) does; give more --devices",
            resource="other",
        )
