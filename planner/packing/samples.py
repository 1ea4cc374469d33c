"""The samples of every step, as they come."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from profiles.lengths import of_step

Array = NDArray[np.int64]
Rows = NDArray[np.uint16]


_BLOCK = 1 << 20  # samples that are looked at together


def counted(lengths: NDArray[np.integer]) -> Array:
    """The number of samples of each length, from 0 tokens on. Takes no copy of the samples."""
    most = int(lengths.max(initial=0)) + 1
    found = np.zeros(most, np.int64)
    for begin in range(0, len(lengths), _BLOCK):
        found += np.bincount(lengths[begin : begin + _BLOCK], minlength=most)
    return found


@dataclass(frozen=True)
class Samples:
    """`batch` of them for every step, from step x batch on, over and over."""

    lengths: NDArray[np.uint32]
    batch: int

    @property
    def period(self) -> int:
        """Steps until all of them come again."""
        return len(self.lengths) // gcd(len(self.lengths), self.batch)

    def of(self, step: int) -> Array:
        """The lengths of the samples of a step."""
        return self.lengths[of_step(step, self.batch, len(self.lengths))].astype(np.int64)

    def due(self, first: int, steps: int) -> Array:
        """The number of samples of each length that come in so many steps, from `first` on."""
        many, start = len(self.lengths), first * self.batch % len(self.lengths)
        often, rest = divmod(steps * self.batch, many)
        parts = self.lengths[start : start + rest], self.lengths[: max(0, start + rest - many)]
        found = often * counted(self.lengths)
        for own in map(counted, parts):
            found[: len(own)] += own
        return found

    def apart(self, steps: Sequence[int]) -> tuple[list[int], Array]:
        """The steps that have no others like them, and for every step the place there of the one
        that is like it."""
        firsts: dict[int, int] = {}
        found = [step for step in steps if firsts.setdefault(step % self.period, step) == step]
        places = {step % self.period: at for at, step in enumerate(found)}
        return found, np.array([places[step % self.period] for step in steps], np.int64)
