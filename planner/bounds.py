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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from planner import workers
from planner.costs import Links, TaskCosts, castable, shape_of
from planner.cuts import cut_points, layer_graph
from planner.evaluation import least_us
from planner.narrow import narrowed
from planner.problem import Effort, Problem
from planner.solver import duals, minimise, solve, total
from planner.store import PLENTY
from planner.terms import Terms, scratch_bytes
from planner.ties import untied
from plans.schema import Bound
from profiles.schema import Layer, Task

_GROUPS = 12  # of the load program over phases
_DIVISIONS = 6  # of the plans that it is about
_PRICE = 10**9  # prices are whole multiples of 1 / _PRICE
_SECONDS = 5.0  # for a linear program that takes a moment

Able = Callable[[str, int], bool]  # whether a task can be trained on the kind at this place


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


Bounds = Sequence[TaskBound | None]
"""Of one task on each kind of device; None where it has no plan at all."""


def task_bounds(
    problem: Problem, effort: Effort, jobs: int = 1, able: Able = lambda task, kind: True
) -> list[Bounds]:
    """The bounds of every task on every kind of device where `able` says that it can be trained;
    tasks of one shape are looked at once."""
    of = []
    for place, kind in enumerate(problem.kinds):
        mine = {shape_of(task): task for task in kind.tasks if able(task.name, place)}
        bound = partial(_task_bound, Links.of(kind.unshared), kind.device_bytes, problem.host_bytes)
        found = workers.each(bound, [*mine.values()], effort, jobs)
        by = dict(zip(mine, found, strict=True))
        of.append([by[shape_of(t)] if able(t.name, place) else None for t in kind.tasks])
    return list(zip(*of, strict=True))


def named_bounds(
    problem: Problem, bounds: Sequence[Bounds], *, phased: bool, alone: bool = True
) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs, from those of the tasks.

    phased: the plan is of the kind that the phase bound is about. alone: no device trains two
    tasks at once; then no two tasks' periods share one device's time.
    """
    counts = [kind.count for kind in problem.kinds]
    sharers = [kind.sharers for kind in problem.kinds]

    # Segments of a device never overlap, so its evaluations come on top of whatever is trained.
    more = {
        (task.name, place): least_us(task, problem.done.get(task.name, 0))
        for place, kind in enumerate(problem.kinds)
        for task in kind.tasks
    }

    def times(us: Callable[[TaskBound], int], by: Sequence[int] = ()) -> list[Times]:
        """Of all steps and evaluations of every task on every kind of device; or of what its steps
        have on the link, multiplied for each kind."""
        factors = by or (1,) * len(counts)
        return [
            tuple(
                None
                if one is None
                else task.steps * us(one) * factor + (0 if by else more[task.name, place])
                for place, (one, factor) in enumerate(zip(of, factors, strict=True))
            )
            for task, of in zip(problem.tasks, bounds, strict=True)
        ]

    compute, phase = times(lambda b: b.compute_us), times(lambda b: b.phase_us)
    return (
        Bound("compute", _even(compute, counts)),
        Bound("link", _even(times(lambda b: b.link_us, sharers), counts)),
        Bound("load", _longest(times(lambda b: b.load_us))),
        *([Bound("phase", max(_longest(phase), _even(phase, counts) if alone else 0))] * phased),
        Bound("critical-path", _longest(compute)),
    )


Times = tuple[int | None, ...]  # µs of a task on each kind of device


def _longest(times: Sequence[Times]) -> int:
    """The task that takes longest, each on the kind where it takes least."""
    return max(min(us for us in of if us is not None) for of in times)


def _even(times: Sequence[Times], counts: Sequence[int]) -> int:
    """All tasks shared out evenly, each in any parts to the devices of any kind.

    True whatever a device's time is worth on each kind: a task is worth what it costs at least, a
    µs of the end what all devices cost.
    """
    ends = [0]
    for prices in _prices(times, counts):
        worth = sum(
            min(p * us for p, us in zip(prices, of, strict=True) if us is not None) for of in times
        )
        ends.append(-(-worth // sum(p * count for p, count in zip(prices, counts, strict=True))))
    return max(ends)


def _prices(times: Sequence[Times], counts: Sequence[int]) -> Iterator[list[int]]:
    """What devices of each kind may be worth: the same; and what a linear program says."""
    yield [1] * len(counts)
    if len(counts) == 1:
        return
    unit = max(us for of in times for us in of if us is not None) or 1
    model = minimise("even")
    end = model.add_variable("end", 0)
    model += end
    loads: list[list[tuple[float, object]]] = [[(-count, end)] for count in counts]
    for number, of in enumerate(times):
        parts = []
        for kind, us in enumerate(of):
            if us is not None:
                parts.append((1.0, model.add_variable(f"part_{number}_{kind}", 0)))
                loads[kind].append((us / unit, parts[-1][1]))
        model += total(parts) >= 1
    for kind, load in enumerate(loads):
        model += total(load) <= 0, f"kind_{kind}"
    if solve(model, seconds=_SECONDS, seed=0).found:
        found = duals(model)
        prices = [max(0, round(-_PRICE * found[f"kind_{kind}"])) for kind in range(len(counts))]
        if any(prices):
            yield prices


def _task_bound(
    links: Links, device_bytes: int, host_bytes: int, task: Task, effort: Effort
) -> TaskBound:
    return task_bound(task, links, device_bytes, effort, host_bytes=host_bytes)


def task_bound(
    task: Task,
    links: Links,
    device_bytes: int,
    effort: Effort,
    divisions: int = _DIVISIONS,
    *,
    host_bytes: int = PLENTY,
) -> TaskBound:
    """Bounds on one step of one task, whether tied layers share a shard or not; with more divisions
    of the plans that of phases says more. host_bytes: what the host offers."""
    task = untied(task)
    cast = castable(task, links)  # which takes nothing from what a plan may do
    sizes = [TaskCosts(task, cost.microbatch, cast=cast) for cost in task.batches]
    compute = min(costs.least_us for costs in sizes)
    link = _load_us(sizes[0], links, device_bytes, 0, effort)
    load = _load_us(sizes[0], links, device_bytes, compute, effort)
    phase = phase_us(sizes, links, device_bytes, effort, divisions, host_bytes=host_bytes)
    return TaskBound(compute, link, max(compute, load), phase or 0)


def phase_us(
    sizes: Sequence[TaskCosts],
    links: Links,
    device_bytes: int,
    effort: Effort,
    divisions: int = _DIVISIONS,
    *,
    host_bytes: int = PLENTY,
) -> int | None:
    """The optimum of the load program over phases, at the best of these microbatch sizes; None
    when no plan can have any of them. With more divisions of the plans it says more."""
    task = sizes[0].task
    points = cut_points(layer_graph(untied(task) if sizes[0].apart else task))
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
