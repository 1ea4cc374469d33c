"""Lower bounds on the time of all steps and evaluations of a task with lengths.

compute     every sample forward and backward by itself, or forward, spread evenly over all devices
longest     steps one after the other: in each its longest sample goes through all layers and back
dispatch    for the pipelines of one mix: sequences divided at will, by weights of the types
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.bounds.rows import Constraint
from planner.bounds.solver import Linear
from planner.bounds.task import Bounds, TaskBound
from planner.inputs import Problem
from planner.packing import Array, LengthsTask, Pool, counted
from planner.shards import shape_of
from plans.order import due_steps
from profiles.curves import Curve, curves_of
from profiles.lengths import held_out
from profiles.schema import Layer, Task

Floats = NDArray[np.float64]

_BLOCK = 1 << 20  # samples that are looked at together
_SAMPLE = 1 << 9  # sequences by which types get weights
_ROUNDED = 0.999  # of a sum of times that were rounded up and down
_FS, _NS = 10**9, 1000  # in a µs
_TINY = 1e-9  # of a mean: no share is less
_SPLIT = "backward_input", "backward_weight"


def compute_us(asked: LengthsTask, devices: int) -> int:
    """The compute bound: what a microbatch takes beside its tokens is left out, many share it."""
    return samples_us(asked, asked.due, devices)


def samples_us(asked: LengthsTask, counts: Array, devices: int) -> int:
    """The compute bound of so many samples of each number of tokens."""
    sizes = np.flatnonzero(counts)
    own, often = sizes.astype(np.float64), counts[sizes]
    whole = sum(float((_least(layer, own, *_SPLIT) * often).sum()) for layer in asked.task.layers)
    return int(whole * _ROUNDED) // devices


def bounds_by_lengths(problem: Problem) -> list[Bounds]:
    """The bounds of every task with lengths on any number of devices; none of other tasks."""
    known: dict[object, Bounds] = {}
    found = list[Bounds]()
    for task in problem.tasks:
        done = problem.done.get(task.name, 0)
        shape = done, shape_of(task)
        if task.lengths and shape not in known:
            lengths = problem.lengths[task.name]
            asked = LengthsTask(task, lengths, problem.only, problem.host_bytes, done)
            whole, every = compute_us(asked, 1), range(1, problem.devices + 1)
            known[shape] = {
                (0, devices): _task_bound(whole // devices, least, task.steps)
                for devices, least in zip(every, longest_us(asked, every), strict=True)
            }
        found.append(known.get(shape, {}))
    return found


def _task_bound(compute: int, in_turn: int, steps: int) -> TaskBound:
    return TaskBound({"compute": compute // steps, "longest": max(compute, in_turn) // steps})


def longest_us(asked: LengthsTask, devices: Sequence[int]) -> list[int]:
    """The longest bound, for each of these numbers of devices.

    A step's forwards begin when all backwards of the one before have reached the first layer that
    is trained. Between lie, of all layers from there on, forwards and gradients of the input: those
    of the longest sample one after the other, those of all samples on any device."""
    layers = asked.task.layers
    first = next((n for n, layer in enumerate(layers) if layer.grad_bytes), 0)
    sizes = np.arange(asked.longest + 1, dtype=np.float64)
    early = np.sum([_least(layer, sizes, "backward_input") for layer in layers[first:]], axis=0)
    apart, which = asked.samples.apart(asked.steps)
    alone, together = np.empty(len(apart)), np.empty(len(apart))
    for at, number in enumerate(apart):
        took = early[asked.step(number)]
        alone[at], together[at] = took.max(), took.sum()
    times = np.bincount(which)
    return [int((times * np.maximum(alone, together / n)).sum() * _ROUNDED) for n in devices]


def _least(layer: Layer, sizes: Floats, *parts: str) -> Floats:
    """The least time of a layer's forward and backward of single sequences, in µs, of a backward
    that may be split only these parts. Curves of a busy machine may leave less than nothing."""
    us: dict[str, Floats] = {curve.op: _us(curve, sizes) for curve in curves_of(layer.costs)}
    whole = us["recompute_backward"]
    if parts[0] not in us:
        return whole
    split = whole - us["backward"] + np.sum([us[part] for part in parts], axis=0)
    return np.asarray(np.minimum(whole, np.maximum(0.0, split)))


def evaluations_us(problem: Problem) -> dict[str, int]:
    """The compute bound of all evaluations of every task with lengths, on one device."""
    return {
        task.name: judged_us(task, held, problem.done.get(task.name, 0))
        for task in problem.tasks
        if task.lengths
        for held in [problem.lengths.get(held_out(task.name), np.zeros(0, np.uint32))]
    }


def judged_us(task: Task, held: NDArray[np.uint32], done: int) -> int:
    """The compute bound of all evaluations of a task on samples of these lengths."""
    often, counts = len(due_steps(task.evaluation, done, task.steps)), counted(held)
    whole = often * sum(_forward(layer, counts) for layer in task.layers)
    return int(whole * _ROUNDED)


def _forward(layer: Layer, counts: Array) -> float:
    """The least time of a layer's forwards of so many sequences of each number of tokens, in
    microbatches however many: as measured, or as in a backward that recomputes, of which a
    microbatch may save a part once."""
    sizes = np.arange(len(counts), dtype=np.float64)
    us = {one.op: float((_us(one, sizes) * counts).sum()) for one in curves_of(layer.costs)}
    fixed = {curve.op: curve.fixed_ns / _NS for curve in curves_of(layer.costs)}
    saved = max(0.0, fixed["backward"] - fixed["recompute_backward"]) * int(counts.sum())
    return min(us["forward"], max(0.0, us["recompute_backward"] - us["backward"] - saved))


def _us(curve: Curve, sizes: Floats) -> Floats:
    return np.asarray((curve.square_fs * sizes / _FS + curve.linear_ps / 10**6) * sizes)


def dispatch_us(asked: LengthsTask, pools: Sequence[Pool]) -> int:
    """The dispatch bound, of each step on that of these pools where it is least; one of them holds
    all samples."""
    us = np.min([_dispatch_us(asked, pool) for pool in pools], axis=0)
    return int(us.sum() * _ROUNDED)


def _dispatch_us(asked: LengthsTask, pool: Pool) -> Floats:
    """The bound of each step, with the weights that are best for some of the sequences; infinite
    where one does not fit."""
    steps, batch = asked.steps, asked.task.batch
    few = steps[:: max(1, len(steps) * batch // _SAMPLE)]
    some = np.concatenate([asked.step(number) for number in few])
    shares = _shares(pool, some[some <= pool.longest])
    found = list[Floats]()
    for first in range(0, len(steps), block := max(1, _BLOCK // batch)):
        own = np.concatenate([asked.step(number) for number in steps[first : first + block]])
        least = np.min([share * us for share, us in zip(shares, _times(pool, own), strict=True)], 0)
        found.append(least.reshape(-1, batch).sum(axis=1))
    return np.concatenate(found)


def _times(pool: Pool, lengths: Array) -> list[Floats]:
    """The time of every sequence on every type, not rounded."""
    return [
        np.where(
            lengths > one.longest, np.inf, (one.curve.square * lengths + one.curve.linear) * lengths
        )
        for one in pool.types
    ]


def _shares(pool: Pool, lengths: Array) -> Floats:
    """The share of each pipeline of a type in a mean of all loads, such that the sum over sequences
    of the least share x time is largest."""
    kinds, many = len(pool.types), len(lengths)
    # Columns: 0 is one, 1 the sum with its sign changed, then shares, then what each adds to it.
    added = range(2 + kinds, 2 + kinds + many)
    rows = [
        Constraint([(1.0, 1), *((1.0, column) for column in added)], 0.0, 0.0),
        Constraint([(float(t.count), 2 + n) for n, t in enumerate(pool.types)], 1.0, 1.0),
    ]
    times = np.array(_times(pool, lengths))
    scale = times.max(initial=1.0, where=np.isfinite(times))
    for kind, own in enumerate((times / scale).tolist()):
        for column, time in zip(added, own, strict=True):
            if time < np.inf:
                rows.append(Constraint([(1.0, column), (-time, 2 + kind)], -np.inf, 0.0))
    program = Linear(2 + kinds + many, rows, {1: 1.0})
    program.bound_columns({1: (-np.inf, np.inf)})
    _, values = program.solve([], seconds=60, seed=0)
    found = np.maximum(np.array(values[2 : 2 + kinds] or np.ones(kinds)), _TINY)
    return np.asarray(found / (np.array([one.count for one in pool.types]) @ found))
