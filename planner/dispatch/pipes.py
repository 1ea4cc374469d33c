"""Pipelines of several types, and what a sequence of some length takes on each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

NEVER = 1 << 50
"""The time of a sequence that a type cannot hold, in µs: longer than any other."""


@dataclass(frozen=True)
class Curve:
    """The time of a sequence of s tokens: square s^2 + linear s + fixed, in µs."""

    square: float
    linear: float
    fixed: float = 0.0

    def us(self, lengths: Array) -> Array:
        """The time of each of so many tokens, rounded up."""
        times = (self.square * lengths + self.linear) * lengths + self.fixed
        return np.ceil(times).astype(np.int64)


@dataclass(frozen=True)
class PipelineType:
    """`count` equal pipelines.

    curve: the time of a sequence on each of `depth` stages. longest: the tokens of the longest
    sequence that fits.
    """

    curve: Curve
    depth: int
    longest: int
    count: int = 1


@dataclass(frozen=True)
class Pool:
    """All pipelines, numbered type by type.

    A pipeline is done when its sequences have passed one stage, and the longest of them the others:
    sum of times + (depth - 1) x the longest time.
    """

    types: tuple[PipelineType, ...]

    @property
    def pipelines(self) -> int:
        return sum(one.count for one in self.types)

    @cached_property
    def type_of(self) -> Array:
        """The type of every pipeline."""
        return np.repeat(np.arange(len(self.types)), [one.count for one in self.types])

    @cached_property
    def depths(self) -> Array:
        """The depth of every pipeline."""
        return np.array([one.depth for one in self.types])[self.type_of]

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence that fits anywhere."""
        return max(one.longest for one in self.types)

    def times(self, lengths: Array) -> Array:
        """The time of every sequence on every type (types x sequences), NEVER where it does not
        fit. ValueError for a sequence that fits nowhere."""
        rows = [np.where(lengths > one.longest, NEVER, one.curve.us(lengths)) for one in self.types]
        times: Array = np.stack(rows)
        if len(lengths) and int(times.min(axis=0).max()) >= NEVER:
            raise ValueError(
                f"a sequence has {int(lengths.max())} tokens, no pipeline holds more than "
                f"{self.longest}"
            )
        return times

    def finishes(self, times: Array, places: Sequence[int] | Array) -> Array:
        """When every pipeline is done, with each sequence in its place."""
        where = np.asarray(places, np.int64)
        own = times[self.type_of[where], np.arange(len(where))]
        loads, tops = np.zeros(self.pipelines, np.int64), np.zeros(self.pipelines, np.int64)
        np.add.at(loads, where, own)
        np.maximum.at(tops, where, own)
        return loads + (self.depths - 1) * tops
