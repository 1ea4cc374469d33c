"""Lower bounds on the time of all steps and evaluations of a task with lengths.

compute     every sample forward and backward by itself, or forward, spread evenly over all devices
dispatch    for the pipelines of one mix: sequences divided at will, by weights of the types
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import Pool
from planner.lp import Constraint, Linear
from planner.sequences.asked import Array, Asked
from plans.order import due_steps
from profiles.schema import Curve, Layer

Floats = NDArray[np.float64]

_BLOCK = 1 << 22  # samples that are looked at together
_SAMPLE = 1 << 9  # sequences by which types get weights
_ROUNDED = 0.999  # of a sum of times that were rounded up and down
_FS, _NS = 10**9, 1000  # in a µs


def compute_us(asked: Asked, devices: int) -> int:
    """The compute bound: what a microbatch takes beside its tokens is left out, many share it."""
    sizes, counts = np.unique(np.asarray(asked.lengths, np.int64), return_counts=True)
    often = counts * _times_each(asked) + _extra(asked, sizes)
    own = sizes.astype(np.float64)
    whole = sum(float((_least(layer, own) * often).sum()) for layer in asked.task.layers)
    return int(whole * _ROUNDED) // devices


def _times_each(asked: Asked) -> int:
    """The steps' samples are all of them so many times, and then some of them once more."""
    return asked.task.steps * asked.task.batch // len(asked.lengths)


def _extra(asked: Asked, sizes: Array) -> Array:
    """The number of samples of each of these lengths that come once more."""
    many, first = len(asked.lengths), asked.done * asked.task.batch
    rest = asked.task.steps * asked.task.batch % many
    more = np.asarray(asked.lengths)[(first + np.arange(rest)) % many]
    return np.bincount(np.searchsorted(sizes, more), minlength=len(sizes))


def _least(layer: Layer, sizes: Floats) -> Floats:
    """The least time of a layer's passes of single sequences, in µs."""
    us = {curve.op: _us(curve, sizes) for curve in layer.curves}
    whole = us["recompute_backward"]
    if "backward_weight" not in us:
        return whole
    split = whole - us["backward"] + us["backward_input"] + us["backward_weight"]
    return np.asarray(np.minimum(whole, split))


def judged_us(asked: Asked, devices: int) -> int:
    """The compute bound of all evaluations."""
    task = asked.task
    if asked.judged is None:
        return 0
    sizes = asked.judged.astype(np.float64)
    often = len(due_steps(task.evaluation, asked.done, task.steps))
    whole = often * sum(_forward(layer, sizes) for layer in task.layers)
    return int(whole * _ROUNDED) // devices


def _forward(layer: Layer, sizes: Floats) -> float:
    """The least time of a layer's forwards of these sequences, in microbatches however many: as
    measured, or as in a backward that recomputes, of which a microbatch may save a part once."""
    us = {curve.op: float(_us(curve, sizes).sum()) for curve in layer.curves}
    fixed = {curve.op: curve.fixed_ns / _NS for curve in layer.curves}
    saved = max(0.0, fixed["backward"] - fixed["recompute_backward"]) * len(sizes)
    return min(us["forward"], max(0.0, us["recompute_backward"] - us["backward"] - saved))


def _us(curve: Curve, sizes: Floats) -> Floats:
    return np.asarray((curve.square_fs * sizes / _FS + curve.linear_ps / 10**6) * sizes)


def dispatch_us(asked: Asked, pool: Pool) -> int:
    """The dispatch bound, with the weights that are best for some of the sequences."""
    fine = Pool(
        tuple(
            replace(
                one,
                curve=replace(
                    one.curve, square=one.curve.square * _NS, linear=one.curve.linear * _NS, fixed=0
                ),
            )
            for one in pool.types
        )
    )
    steps, batch = asked.steps, asked.task.batch
    few = steps[:: max(1, len(steps) * batch // _SAMPLE)]
    some = np.concatenate([asked.step(number) for number in few])
    shares, ns = _shares(fine, fine.times(some).astype(np.float64)), 0.0
    block = max(1, _BLOCK // batch)
    for first in range(0, len(steps), block):
        own = np.concatenate([asked.step(number) for number in steps[first : first + block]])
        ns += float((shares[:, None] * fine.times(own)).min(axis=0).sum())
    return int(ns * _ROUNDED) // _NS


def _shares(pool: Pool, times: Floats) -> Floats:
    """The share of each pipeline of a type in a mean of all loads, such that the sum over sequences
    of the least share x time is largest."""
    kinds, many = times.shape
    # Columns: 0 is one, 1 the sum with its sign changed, then shares, then what each adds to it.
    added = range(2 + kinds, 2 + kinds + many)
    rows = [
        Constraint([(1.0, 1), *((1.0, column) for column in added)], 0.0, 0.0),
        Constraint([(float(t.count), 2 + n) for n, t in enumerate(pool.types)], 1.0, 1.0),
    ]
    scaled = times / times.max()
    for kind, own in enumerate(scaled.tolist()):
        for column, time in zip(added, own, strict=True):
            rows.append(Constraint([(1.0, column), (-time, 2 + kind)], -np.inf, 0.0))
    program = Linear(2 + kinds + many, rows, [1])
    program.bound_columns({1: (-np.inf, np.inf)})
    _, values = program.solve([], seconds=60, seed=0)
    found = np.array(values[2 : 2 + kinds] or np.ones(kinds))
    return np.asarray(found / (np.array([one.count for one in pool.types]) @ found))
