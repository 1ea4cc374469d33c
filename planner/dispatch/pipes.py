"""Pipelines of several types, and what a sequence of some length takes on each."""

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

    def __post_init__(self) -> None:
        if not np.isfinite((self.square, self.linear, self.fixed)).all() or self.square < 0:
            raise ValueError(f"{self}: all three must be finite, and square at least 0")

    def us(self, lengths: Array) -> Array:
        """The time of each of so many tokens, rounded up; at least 1."""
        times = (self.square * lengths + self.linear) * lengths + self.fixed
        return np.asarray(np.maximum(1, np.ceil(times)), np.int64)


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

    def __post_init__(self) -> None:
        if min(self.depth, self.longest, self.count) < 1:
            raise ValueError(f"{self}: depth, longest and count must be at least 1")


@dataclass(frozen=True)
class Pool:
    """All pipelines, numbered type by type.

    A pipeline is done when its sequences have passed one stage, and the longest of them the others:
    sum of times + (depth - 1) x the longest time.
    """

    types: tuple[PipelineType, ...]

    def __post_init__(self) -> None:
        if not self.types:
            raise ValueError("a pool must have at least one type of pipelines, has none")

    @property
    def pipelines(self) -> int:
        return sum(one.count for one in self.types)

    @cached_property
    def type_of(self) -> Array:
        """The type of every pipeline."""
        return np.repeat(np.arange(len(self.types)), [one.count for one in self.types])

    @cached_property
    def depths(self) -> Array:
        """The depth of every type."""
        return np.array([one.depth for one in self.types])

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
        return np.where(times < NEVER, self.depths[:, None] * times, NEVER)

    def finishes(self, times: Array, places: Array) -> Array:
        """The finish of every pipeline, with each sequence in its place."""
        own = times[self.type_of[places], np.arange(len(places))]
        loads, tops = np.zeros(self.pipelines, np.int64), np.zeros(self.pipelines, np.int64)
        np.add.at(loads, places, own)
        np.maximum.at(tops, places, own)
        return loads + (self.depths[self.type_of] - 1) * tops
