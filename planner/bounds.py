"""Named lower bounds on the makespan of any plan the executor could run.

compute        one forward and one backward of every layer, and the norms of its gradients where
               updates wait for them, spread evenly over the devices
link           bytes that cannot stay on a device must cross its link every round, spread evenly
load           steps x the best period of one task alone: compute, links, host and memory at
               once, with single layers as shards and free residency (a linear program)
phase          steps x the best period of one task alone, of rounds that take all microbatches
               of a shard in turn, or those of a block at the top one by one, and whose gradients,
               where updates wait for norms, wait where they are updated: what a layer needs
               between its update and its forward, and between forward and backward, must cross
               the link or hold memory meanwhile (`phases`); all tasks' spread over the devices
critical-path  steps x the compute time of the longest task, which runs one step at a time
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from planner import workers
from planner.costs import Links, TaskCosts, shape_of
from planner.graph import cut_points, layer_graph
from planner.narrow import narrowed
from planner.problem import Effort, Problem
from planner.solver import minimise, solve
from planner.terms import Terms
from plans.schema import Bound
from profiles.schema import Layer, Task

_GROUPS = 12  # of the load program over phases
_DIVISIONS = 6  # of the plans that it is about


@dataclass(frozen=True)
class TaskBound:
    """µs per step of one task alone: compute, link load, all at once, and phase by phase.

    No plan beats the first three, and none of the kind described above the last.
    """

    compute_us: int
    link_us: int
    load_us: int
    phase_us: int

    @property
    def period_us(self) -> int:
        return max(self.load_us, self.phase_us)


def lower_bounds(
    problem: Problem, effort: Effort, *, phased: bool, alone: bool = True
) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs; see `named_bounds`."""
    return named_bounds(problem, task_bounds(problem, effort), phased=phased, alone=alone)


def task_bounds(problem: Problem, effort: Effort, jobs: int = 1) -> list[TaskBound]:
    """The bounds of every task; tasks of one shape are looked at once."""
    shapes = {shape_of(task): task for task in problem.tasks}
    bound = partial(_task_bound, Links.of(problem.unshared), problem.device_bytes)
    of = dict(zip(shapes, workers.each(bound, [*shapes.values()], effort, jobs), strict=True))
    return [of[shape_of(task)] for task in problem.tasks]


def named_bounds(
    problem: Problem, bounds: Sequence[TaskBound], *, phased: bool, alone: bool = True
) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs, from those of the tasks.

    phased: the plan is of the kind that the phase bound is about. alone: no device trains two
    tasks at once; then no two tasks' periods share one device's time.
    """
    each = list(zip(problem.tasks, bounds, strict=True))
    count, sharers = problem.devices, problem.sharers
    return (
        Bound("compute", math.ceil(sum(t.steps * b.compute_us for t, b in each) / count)),
        Bound("link", math.ceil(sum(t.steps * b.link_us for t, b in each) * sharers / count)),
        Bound("load", max(t.steps * b.load_us for t, b in each)),
        *([Bound("phase", _phase(each, count if alone else 0))] * phased),
        Bound("critical-path", max(t.steps * b.compute_us for t, b in each)),
    )


def _phase(each: Sequence[tuple[Task, TaskBound]], devices: int) -> int:
    """The longest task, and all of them spread evenly over the devices, unless these are 0."""
    times = [task.steps * bound.phase_us for task, bound in each]
    return max(max(times), math.ceil(sum(times) / devices) if devices else 0)


def _task_bound(links: Links, device_bytes: int, task: Task, effort: Effort) -> TaskBound:
    return task_bound(task, links, device_bytes, effort)


def task_bound(task: Task, links: Links, device_bytes: int, effort: Effort) -> TaskBound:
    """Bounds on one step of one task."""
    sizes = [TaskCosts(task, cost.microbatch) for cost in task.batches]
    compute = min(costs.least_us for costs in sizes)
    link = _load_us(sizes[0], links, device_bytes, 0, effort)
    load = _load_us(sizes[0], links, device_bytes, compute, effort)
    phase = phase_us(sizes, links, device_bytes, effort)
    return TaskBound(compute, link, max(compute, load), phase or 0)


def phase_us(
    sizes: Sequence[TaskCosts],
    links: Links,
    device_bytes: int,
    effort: Effort,
    divisions: int = _DIVISIONS,
) -> int | None:
    """The optimum of the load program over phases, at the best of these microbatch sizes; None
    when no plan can have any of them. With more divisions of the plans it says more."""
    points = cut_points(layer_graph(sizes[0].task))
    roots = [
        Terms(
            costs,
            list(pairwise(points)),
            links.best_h2d,
            links.best_d2h,
            device_bytes - costs.fixed_bytes,
            links,
        )
        for costs in sizes
    ]
    return narrowed(roots, _GROUPS, len(roots) + divisions, effort)


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
