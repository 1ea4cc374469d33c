"""Lower bounds on a step of one task alone on a gang, in any plan that the executor could run.

compute         one forward and one backward of every layer, and the norms of its gradients where
                updates wait for them; on several devices a part for each, and no less than a
                microbatch's way up and down
fill-and-drain  on several devices, by the size of microbatches: large ones take less time in all,
                but more for their way up and down, behind which no device fills its time with
                others if there are few. It holds for all places, replicas and orders. And no less
                than compute, links, host and memory of all devices take at once, with single layers
                as shards and free residency (a linear program)
phase           on one device, of rounds that take all microbatches of a shard in turn, or those of
                a block at the top one by one, whose gradients, where updates wait for norms, wait
                where they are updated, and whose devices update a shard as soon as that may be:
                what a layer needs between its update and its forward, between forward and
                backward, and for its update must cross the link or hold memory meanwhile
                (`windows`)
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from planner.bounds.branch_and_bound import narrowed
from planner.bounds.rows import Terms, scratch_bytes
from planner.bounds.solver import Status, minimise, solve
from planner.inputs import Effort, Problem
from planner.processes import each
from planner.shards import PLENTY, Links, TaskCosts, castable, cut_points, shape_of, untied
from profiles.schema import Layer, Task

StepName = Literal["compute", "fill-and-drain", "phase", "longest"]

_WEAKER: dict[StepName, StepName] = {
    "phase": "fill-and-drain",
    "fill-and-drain": "longest",
    "longest": "compute",
}

Gang = tuple[int, int]
"""The place of a kind of devices, and how many of them train a task at once."""


@dataclass(frozen=True)
class TaskBound:
    """µs per step of one task alone on a gang: no plan for it takes less; phase: none of the kind
    that `task` describes."""

    known: Mapping[StepName, int]

    def us(self, name: StepName) -> int:
        """The bound by this name; where it is not known a weaker one."""
        return self.known[name] if name in self.known else self.us(_WEAKER[name])

    @property
    def period_us(self) -> int:
        return self.us("phase")


Bounds = Mapping[Gang, TaskBound]
"""The bounds of one task, on every gang that can train it."""


def task_bounds(
    problem: Problem,
    effort: Effort,
    jobs: int = 1,
    able: Mapping[str, Collection[Gang]] | None = None,
    known: Sequence[Bounds] = (),
) -> list[Bounds]:
    """The bounds of every task where it is `able` to be trained, by default on one device of any
    kind; tasks of one shape are looked at once. known: some of them, of every task."""
    alone = [(place, 1) for place in range(len(problem.kinds))]
    able = able or {task.name: alone for task in problem.tasks}
    of = [
        {gang: one for gang, one in own.items() if gang in able[task.name]}
        for task, own in zip(problem.tasks, known or [{}] * len(problem.tasks), strict=True)
    ]
    for place, devices in sorted({gang for gangs in able.values() for gang in gangs}):
        kind = problem.kinds[place]
        gang = place, devices
        asked = [
            (at, task)
            for at, task in enumerate(kind.tasks)
            if gang in able[task.name] and gang not in of[at]
        ]
        mine = {shape_of(task): task for _, task in asked}
        bound = partial(
            task_bound,
            links=Links.of(kind.device),
            device_bytes=kind.device_bytes,
            host_bytes=problem.host_bytes,
            devices=devices,
        )
        found = each(bound, [*mine.values()], effort, jobs)
        by = dict(zip(mine, found, strict=True))
        for at, task in asked:
            of[at][gang] = by[shape_of(task)]
    return [*of]


def task_bound(
    task: Task,
    effort: Effort,
    links: Links,
    device_bytes: int,
    host_bytes: int = PLENTY,
    devices: int = 1,
) -> TaskBound:
    """Bounds on one step of one task, whether tied layers share a shard or not.

    host_bytes: what the host offers. devices: so many train it at once, each with such links and
    bytes.
    """
    task = untied(task)
    cast = castable(task, links)  # which takes nothing from what a plan may do
    sizes = [TaskCosts(task, cost.microbatch, cast=cast) for cost in task.batches]
    if devices > 1:
        least = min(map(_apart_us, sizes)), min(map(_way_us, sizes))
        compute = max(-(-least[0] // devices), least[1])
        load = _load_us(sizes[0], links, devices * device_bytes, least[0], effort) // devices
        fill = max(load, min(_fill_us(costs, devices) for costs in sizes))
        return TaskBound({"compute": compute, "fill-and-drain": fill})
    compute = min(costs.least_us for costs in sizes)
    phase = phase_us(sizes, links, device_bytes, effort, host_bytes) or 0
    return TaskBound({"compute": compute, "phase": max(compute, phase)})


def _apart_us(costs: TaskCosts) -> int:
    """Compute time of a step of which backwards may be split, as they are on several devices."""
    return costs.microbatches * costs.total("least") + costs.total("norm_us")


def _fill_us(costs: TaskCosts, devices: int) -> int:
    """The time of a step with microbatches of this size, spread evenly over several devices, and no
    less than the way of one and the update for which the next one waits."""
    trained = (layer for layer in costs.layers if layer.grad_bytes)
    first = next(trained, None)
    update = min(first.update_device.median_us, first.update_host.median_us) if first else 0
    return max(-(-_apart_us(costs) // devices), _way_us(costs) + update)


def _way_us(costs: TaskCosts) -> int:
    """The time of a microbatch up and down the layers that wait for updates: those from the first
    that is trained on."""
    trained = (at for at, layer in enumerate(costs.layers) if layer.grad_bytes)
    return costs.total("way", next(trained, len(costs.layers)))


def phase_us(
    sizes: Sequence[TaskCosts],
    links: Links,
    device_bytes: int,
    effort: Effort,
    host_bytes: int = PLENTY,
) -> int | None:
    """The optimum of the load program over phases, at the best of these microbatch sizes; None
    when no plan can have any of them."""
    task = sizes[0].task
    points = cut_points(task, apart=sizes[0].apart)
    items = tuple(pairwise(points))
    roots = [
        Terms(
            costs,
            items,
            links.best_h2d,
            links.best_d2h,
            device_bytes - costs.fixed_bytes,
            links,
            host_bytes=scratch_bytes(costs, items, host_bytes),
        )
        for costs in sizes
    ]
    limits = effort.limits
    programs = len(roots) + limits.bound_divisions
    return narrowed(roots, limits.bound_groups, programs, effort, limits.bound_whole)


def _load_us(costs: TaskCosts, links: Links, room: int, compute_us: int, effort: Effort) -> int:
    """Optimum of the layer-level load program, for devices that share links and room.

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
    if solve(model, seconds=max(1.0, effort.left), seed=effort.seed) is not Status.FOUND:
        return 0
    return max(0, int(period.value() - 1e-3))


def _least_bytes(layer: Layer, *, grads: bool) -> int:
    """The least that a layer which does not stay moves: its parameters (or, outwards, gradients),
    or its state when it is updated on a device that only keeps the parameters."""
    moved = layer.grad_bytes if grads else layer.param_bytes
    return min(moved, layer.state_bytes) if layer.state_bytes else moved


def stages_us(
    costs: TaskCosts, ends: Sequence[int], replicas: Sequence[int], *, split: bool
) -> int:
    """The largest sum over devices: a device computes with all its microbatches, after forwards of
    one through the stages before and before its backwards through them.

    ends: those of the stages, from 0 on, which take turns on the devices. split: backwards may be
    done in two parts.
    """
    depth, before, trained, most = len(replicas), 0, False, 0
    first, whole = ("way", "least") if split else ("backward_us", "backward_us")
    own, both = [0] * depth, [0] * depth
    for place, (a, b) in enumerate(pairwise(ends)):
        at = place % depth
        count = -(-costs.microbatches // replicas[at])
        own[at] += count * costs.total(first, a, b)
        both[at] += count * costs.total(whole, a, b)
        if place < depth:
            most = max(most, before + own[at])
        trained |= costs.total("grad_bytes", a, b) > 0
        before += costs.total(first, a, b) * trained
    return max(most, *both)
