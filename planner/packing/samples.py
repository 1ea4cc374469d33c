"""The samples of every step, as they come."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from profiles.lengths import of_step

Array = NDArray[np.int64]
Rows = NDArray[np.uint16]


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

    def apart(self, steps: Sequence[int]) -> tuple[list[int], Array]:
        """The steps that have no others like them, and for every step the place there of the one
        that is like it."""
        firsts: dict[int, int] = {}
        found = [step for step in steps if firsts.setdefault(step % self.period, step) == step]
        places = {step % self.period: at for at, step in enumerate(found)}
        return found, np.array([places[step % self.period] for step in steps], np.int64)
