"""Pipelines of several types, and what sequences take on each.

The sequences of a pipeline share microbatches, each of which takes `fixed` besides. How many there
are is not known when sequences are dispatched. Two models say no more than any packing takes:

shared  as many as are best, all equally long, none shorter than the longest sequence
full    as few as hold all tokens: `fixed` is spread over the tokens of full ones

Without `fixed` they are one: sum of times + (depth - 1) x the longest time.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = 1 << 50
"""The time of a sequence that a type cannot hold, in µs: longer than any other."""

_TINY = 1e-9


@dataclass(frozen=True)
class Curve:
    """The time of a microbatch in µs: square s^2 + linear s for each of its sequences of s tokens,
    and fixed."""

    square: float
    linear: float
    fixed: float = 0.0

    @classmethod
    def through(cls, tokens: int, least: int, packed: int, whole: int) -> "Curve":
        """By the times of a microbatch of one token, of so many in short sequences, and of as many
        in one sequence."""
        square = max(0.0, (whole - packed) / tokens**2)
        return cls(square, (packed - least) / (tokens - 1), float(least))

    def us(self, lengths: Array) -> Array:
        """The time of each sequence of so many tokens, without fixed, rounded up; at least 1."""
        times = (self.square * lengths + self.linear) * lengths
        return np.asarray(np.maximum(1, np.ceil(times)), np.int64)


@dataclass(frozen=True)
class PipelineType:
    """`count` equal pipelines.

    curve: the time of a microbatch on each of `depth` stages. longest: the most tokens of a
    microbatch, so also those of the longest sequence that fits.
    """

    curve: Curve
    depth: int
    longest: int
    count: int = 1

    @property
    def full(self) -> "PipelineType":
        """The same by the other model: every microbatch is full."""
        linear = self.curve.linear + self.curve.fixed / self.longest
        return replace(self, curve=Curve(self.curve.square, linear))

    def room_us(self, done: int, top: int) -> float:
        """The most that a pipeline can have to do to be done by then, the longest of it `top`, if
        that alone is: `done_us` solved for the load.

        Each stage has slots as long as a microbatch; all but as many as there are other stages are
        for microbatches."""
        fixed, lost = self.curve.fixed, self.depth - 1
        slots = done / (top + fixed)
        if fixed:
            slots = min(slots, (lost * done / fixed) ** 0.5)
        slots = max(slots, self.depth)
        return float((done / slots - fixed) * (slots - lost))


@dataclass(frozen=True)
class Pool:
    """All pipelines, numbered type by type.

    A pipeline is done when its microbatches have passed one stage, and one of them the others.
    """

    types: tuple[PipelineType, ...]

    @cached_property
    def pipelines(self) -> int:
        return sum(one.count for one in self.types)

    @cached_property
    def each(self) -> list[PipelineType]:
        """Every pipeline, as one of its type."""
        return [one for one in self.types for _ in range(one.count)]

    @cached_property
    def type_of(self) -> Array:
        """The type of every pipeline."""
        return np.repeat(np.arange(len(self.types)), [one.count for one in self.types])

    @cached_property
    def depths(self) -> Array:
        """The depth of every type."""
        return np.array([one.depth for one in self.types])

    @cached_property
    def fixed(self) -> Floats:
        """The time of a microbatch of every type beside its sequences."""
        return np.array([one.curve.fixed for one in self.types])

    @cached_property
    def full(self) -> "Pool":
        """The same, where every microbatch is full."""
        return Pool(tuple(one.full for one in self.types)) if self.fixed.any() else self

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence that fits anywhere."""
        return max(one.longest for one in self.types)

    def times(self, lengths: Array) -> Array:
        """The time of every sequence on every type (types x sequences), NEVER where it does not
        fit. ValueError for a sequence that fits nowhere, or has no tokens."""
        if len(lengths) and int(lengths.min()) < 1:
            at = int(lengths.argmin())
            raise ValueError(f"sequence {at} has {int(lengths[at])} tokens, must be at least 1")
        if len(lengths) and int(lengths.max()) > self.longest:
            at = int(lengths.argmax())
            raise ValueError(
                f"sequence {at} has {int(lengths[at])} tokens, no pipeline holds more than "
                f"{self.longest}"
            )
        rows = [np.where(lengths > one.longest, NEVER, one.curve.us(lengths)) for one in self.types]
        return np.stack(rows)

    def alone(self, times: Array) -> Array:
        """The finish of each sequence alone on a pipeline of each type, by its times."""
        done = (self.depths[:, None] * (times + self.fixed[:, None])).astype(np.int64)
        return np.where(times < NEVER, done, NEVER)

    def floor(self, times: Array) -> int:
        """The time before which no dispatch is done: of the longest sequence alone, or of the mean
        load, each sequence where that is least."""
        alone, load = self.alone(times).min(axis=0).max(initial=0), times.min(axis=0).sum()
        return max(int(alone), -(-int(load) // self.pipelines))

    def held(self, times: Array, places: Array) -> tuple[Array, Array]:
        """The load of every pipeline, and its longest sequence, with each sequence in its place."""
        own = times[self.type_of[places], np.arange(len(places))]
        loads, tops = np.zeros(self.pipelines, np.int64), np.zeros(self.pipelines, np.int64)
        np.add.at(loads, places, own)
        np.maximum.at(tops, places, own)
        return loads, tops

    def finishes(self, times: Array, places: Array) -> Array:
        """The finish of every pipeline, with each sequence in its place; 0 of one without any."""
        kinds = self.type_of
        return done_us(*self.held(times, places), self.depths[kinds], self.fixed[kinds])


def microbatches(loads: Array, tops: Array, depths: Array, fixed: Floats) -> Floats:
    """As many as are best for pipelines that have so much to do, the longest of it `tops`."""
    each = np.minimum(loads, np.sqrt(loads * (fixed / np.maximum(depths - 1, _TINY))))
    return np.asarray(np.maximum(1, loads / np.maximum(np.maximum(tops, each), 1)))


def done_us(loads: Array, tops: Array, depths: Array, fixed: Floats) -> Array:
    """When they are done in so many microbatches, rounded down; 0 with nothing to do."""
    many = microbatches(loads, tops, depths, fixed)
    each = np.maximum(tops, loads / many)
    done = loads + fixed * many + (depths - 1) * (each + fixed)
    return np.where(loads > 0, done, 0).astype(np.int64)
