"""Lower bounds on the time of all steps of a task with lengths.

compute     every sample forward and backward by itself, spread evenly over all devices
dispatch    for the pipelines of one mix: sequences divided at will, by weights of the types
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import Pool
from planner.dispatch.bounds import weighted_us, weights
from planner.sequences.asked import Array, Asked
from plans.prediction import Bound
from profiles.schema import Curve, Layer

Floats = NDArray[np.float64]

_BLOCK = 1 << 22  # samples that are looked at together
_SAMPLE = 1 << 12  # sequences by which types get weights
_ROUNDED = 0.999  # of a sum of times that were rounded up and down
_FS, _NS = 10**9, 1000  # in a µs


def bounds(asked: Asked, pool: Pool, devices: int) -> tuple[Bound, ...]:
    """The named bounds of all steps."""
    return (
        Bound("compute", compute_us(asked, devices)),
        Bound("dispatch", dispatch_us(asked, pool)),
    )


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
    """Of each of these lengths, the samples that come once more."""
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
    share = weights(fine, some, fine.times(some))
    ns = 0
    for first in range(0, len(steps), block := max(1, _BLOCK // batch)):
        own = np.concatenate([asked.step(number) for number in steps[first : first + block]])
        ns += int(weighted_us(fine.times(own), share))
    return int(ns * _ROUNDED) // _NS
