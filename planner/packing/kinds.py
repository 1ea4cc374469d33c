"""Steps to few kinds: how many microbatches each pipeline has in the rounds of a kind.

A step may be of any kind that has at least as many microbatches on every pipeline as it needs; what
it does not need runs a token of padding, which takes `fixed_us`. So kinds are the largest counts of
groups of steps. Groups are made by dividing: those steps that have much of something from those
that have little of it, where that gains most.

A step that takes much longer or shorter than others of its kind loses no time, but is predicted
badly, and ordered for other times: a sixteenth of the difference counts as lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

_SAMPLE = 1 << 14  # steps by which kinds are chosen, times pipelines
_CUTS = 8  # places where a group may be divided, by each of its features
_FEATURES = 16  # pipelines whose microbatches are such features
_ODD = 1 / 16  # of how far a step is from the mean of its kind
_BLOCK = 4_096  # steps that are looked at together


@dataclass(frozen=True)
class Shapes:
    """Every step's microbatches and times by pipeline (steps x pipelines), and what another
    microbatch, of one token, takes on each pipeline."""

    counts: Array
    us: Array
    fixed_us: Array

    def took(self, steps: Array | slice, counts: Array) -> Array:
        """The time of steps in rounds with so many microbatches."""
        idle = counts - self.counts[steps]
        return np.asarray((self.us[steps] + idle * self.fixed_us).max(axis=1), np.int64)


class Kinds(NamedTuple):
    """The microbatches of every kind by pipeline (kinds x pipelines), and the time of its steps."""

    counts: Array
    us: Array


def kinds_of(shapes: Shapes, most: int, worth: float, change_us: int = 0) -> Kinds:
    """At most so many kinds, as few as lose less than `worth` of the time of all steps. Kind 0 has
    at least the microbatches of any step. A step of another kind than the one before it takes
    `change_us` more."""
    whole, pipelines = shapes.counts.shape
    few = min(whole, max(256, _SAMPLE // pipelines))
    sample = np.linspace(0, whole - 1, few).astype(np.int64)
    change = 2 * change_us / few  # if steps of one kind and of another follow by chance
    own = float(shapes.us[sample].max(axis=1).sum())
    groups = [_Group.of(shapes, sample, change)]
    while len(groups) < most and sum(group.lost for group in groups) > worth * own:
        best = max(range(len(groups)), key=lambda at: groups[at].gain)
        if groups[best].gain <= 0:
            break
        groups += [_Group.of(shapes, part, change) for part in groups.pop(best).parts]
    counts = np.stack([shapes.counts[group.steps].max(axis=0) for group in groups]).astype(np.int64)
    us = [shapes.took(group.steps, own).mean() for group, own in zip(groups, counts, strict=True)]
    order = np.argsort(-counts.sum(axis=1), kind="stable")
    counts = counts[order]
    counts[0] = shapes.counts.max(axis=0)
    return Kinds(counts, np.rint(us).astype(np.int64)[order])


@dataclass(frozen=True)
class _Group:
    """Steps of a kind, what they lose in it, the best way to divide them, and what that gains."""

    steps: Array
    lost: float
    parts: tuple[Array, ...] = ()
    gain: float = 0.0

    @classmethod
    def of(cls, shapes: Shapes, steps: Array, change: float) -> "_Group":
        group = cls(steps, _lost(shapes, steps))
        for parts in _divisions(shapes, steps):
            after = sum(_lost(shapes, part) for part in parts)
            gain = group.lost - after - change * len(parts[0]) * len(parts[1])
            if gain > group.gain:
                group = cls(steps, group.lost, parts, gain)
        return group


def _lost(shapes: Shapes, steps: Array) -> float:
    took = shapes.took(steps, shapes.counts[steps].max(axis=0))
    odd = np.abs(took - took.mean()).sum()
    return float((took - shapes.us[steps].max(axis=1)).sum() + _ODD * odd)


def _divisions(shapes: Shapes, steps: Array) -> Iterator[tuple[Array, Array]]:
    """Little and much: of the time, and of the microbatches of all pipelines or of one."""
    counts = shapes.counts[steps]
    pipelines = counts.shape[1]
    some = np.unique(np.linspace(0, pipelines - 1, _FEATURES).astype(np.int64))
    for feature in (shapes.us[steps].max(axis=1), counts.sum(axis=1), *counts[:, some].T):
        values = np.unique(feature)
        cuts = np.linspace(0, len(values) - 1, _CUTS + 2).astype(np.int64)
        for value in np.unique(values[cuts])[:-1]:
            few = feature <= value
            yield steps[few], steps[~few]


def assigned(shapes: Shapes, kinds: Kinds, change_us: int = 0) -> Array:
    """The kind of every step, such that all of them in turn lose least, `change_us` from one kind
    to another."""
    costs = np.empty((len(shapes.counts), len(kinds.counts)))
    for begin in range(0, len(costs), _BLOCK):
        steps = slice(begin, begin + _BLOCK)
        for number, (counts, us) in enumerate(zip(*kinds, strict=True)):
            costs[steps, number] = _cost(shapes, steps, counts, us)
    return cheapest_sequence(costs, change_us)


def cheapest_sequence(costs: NDArray[np.float64], begin_us: int | Array) -> Array:
    """One of few choices for each of many steps, such that all together cost least: what is given
    for every step and choice, and `begin_us`, of each choice or of all alike, where a step has
    another than the one before it; the first one begins, too."""
    if not np.any(begin_us):
        return np.asarray(costs.argmin(axis=1), np.int64)
    came = np.empty(costs.shape, np.int64)  # the choice before, if a step has a choice
    stay, total = np.arange(costs.shape[1]), np.zeros(costs.shape[1]) + begin_us
    for step, cost in enumerate(costs):
        begun = total.min() + begin_us
        moves = total > begun
        came[step] = np.where(moves, total.argmin(), stay)
        total = np.where(moves, begun, total) + cost
    found, choice = np.empty(len(costs), np.int64), int(total.argmin())
    for step in range(len(costs) - 1, -1, -1):
        found[step] = choice
        choice = int(came[step, choice])
    return found


def _cost(shapes: Shapes, steps: slice, counts: Array, us: int) -> NDArray[np.float64]:
    """The time of steps in a kind, and what is lost there besides; infinite where a step has more
    microbatches."""
    took = shapes.took(steps, counts).astype(np.float64)
    took += _ODD * np.abs(took - us)
    took[(shapes.counts[steps] > counts).any(axis=1)] = np.inf
    return took
