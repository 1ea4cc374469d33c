"""Named lower bounds on the makespan of any plan the executor could run.

compute        all backward work (with its recomputation) plus the forward of every layer
               outside the largest last shard that fits, spread evenly over the devices
link           bytes that cannot stay on a device must cross its link every round, spread evenly
load           steps x the best period of one task alone: compute, links, host and memory at
               once, with single layers as shards and free residency (a linear program)
critical-path  steps x the compute time of the longest task, which runs one step at a time
"""

import math
from dataclasses import dataclass

from planner.costs import Links, TaskCosts
from planner.problem import Effort, Problem
from planner.solver import minimise, solve
from plans.schema import Bound
from profiles.schema import Layer, Task


@dataclass(frozen=True)
class TaskBound:
    """µs per step of one task alone that no plan can beat: compute, link load, and all at once."""

    compute_us: int
    link_us: int
    period_us: int


def lower_bounds(problem: Problem, effort: Effort) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs."""
    links = Links.of(problem.device)
    each = [(t, task_bound(t, links, problem.device_bytes, effort)) for t in problem.tasks]
    count = problem.devices
    return (
        Bound("compute", math.ceil(sum(t.steps * b.compute_us for t, b in each) / count)),
        Bound("link", math.ceil(sum(t.steps * b.link_us for t, b in each) / count)),
        Bound("load", max(t.steps * b.period_us for t, b in each)),
        Bound("critical-path", max(t.steps * b.compute_us for t, b in each)),
    )


def task_bound(task: Task, links: Links, device_bytes: int, effort: Effort) -> TaskBound:
    """Bounds on one step of one task."""
    sizes = [TaskCosts(task, cost.microbatch) for cost in task.batches]
    compute = min(_compute_us(costs, device_bytes) for costs in sizes)
    link = _load_us(sizes[0], links, device_bytes, 0, effort)
    period = _load_us(sizes[0], links, device_bytes, compute, effort)
    return TaskBound(compute, link, max(compute, period))


def _compute_us(costs: TaskCosts, device_bytes: int) -> int:
    """Backward of all layers, forward of those that the largest possible last shard leaves."""
    count = len(costs.layers)
    first = count - 1
    while first > 0 and _alone_bytes(costs, first - 1, count) <= device_bytes:
        first -= 1
    return costs.microbatches * (costs.total("backward") + costs.total("forward", 0, first))


def _alone_bytes(costs: TaskCosts, first: int, end: int) -> int:
    """What the shard needs on its device at the very least while its backward runs."""
    held = costs.total("param", first, end) + costs.total("grad", first, end)
    return held + costs.backward_transient(first, end) + costs.batch_bytes


def _load_us(costs: TaskCosts, links: Links, room: int, compute_us: int, effort: Effort) -> int:
    """Optimum of the layer-level load program.

    stay_l in [0, 1]: the part of layer l that is resident, parameters and state taking memory.
    Of what does not stay, either the parameters or the state cross the link every round in each
    direction, at its best rate. device_l >= stay_l: the part updated on the device, the rest on
    the host.
    """
    layers = [layer for layer in costs.layers if layer.grad_bytes]
    if not layers:
        return 0
    model = minimise("load")
    stay = [model.add_variable(f"stay_{i}", 0, 1) for i in range(len(layers))]
    period = model.add_variable("period_us", 0)
    model += period
    pairs = list(zip(layers, stay, strict=True))
    if compute_us:
        device = [model.add_variable(f"device_{i}", 0, 1) for i in range(len(layers))]
        for here, kept in zip(device, stay, strict=True):
            model += here >= kept
        updates = list(zip(layers, device, strict=True))
        model += period >= compute_us + sum(x.update_device.median_us * d for x, d in updates)
        model += period >= sum(x.update_host.median_us * (1 - d) for x, d in updates)
    for rate, grads in ((links.best_h2d, False), (links.best_d2h, True)):
        crossing = [(_least_bytes(x, grads=grads) * (1e6 / rate), s) for x, s in pairs]
        model += period >= sum(us * (1 - s) for us, s in crossing)
    model += sum((x.param_bytes + x.state_bytes) * s for x, s in pairs) <= room
    outcome = solve(model, seconds=max(1.0, effort.left), seed=effort.seed)
    return math.floor(outcome.bound - 1e-3) if outcome.bound and outcome.bound > 1e-3 else 0


def _least_bytes(layer: Layer, *, grads: bool) -> int:
    """What a layer that does not stay moves at least: its parameters (or, outwards, gradients),
    or its state when it is updated on a device that only keeps the parameters."""
    moved = layer.grad_bytes if grads else layer.param_bytes
    return min(moved, layer.state_bytes) if layer.state_bytes else moved
