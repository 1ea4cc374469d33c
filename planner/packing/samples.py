"""The samples of every step: those that come in it, or as many others of the same window of steps.

    as they come     1 9 | 2 8 | 3 7        each step as long as its longest sample
    moved            9 8 | 1 2 | 3 7        within windows of two steps, the last of which is alone

Steps that come again with the same samples are moved, and laid out, once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import Pool, reordered
from plans import samples as tables

Array = NDArray[np.int64]
Rows = NDArray[np.uint16]

_BLOCK = 32  # steps at a time, or a window of more


@dataclass(frozen=True)
class Samples:
    """`batch` of them for every step, from step x batch on, over and over. window: steps between
    which they may move, counted from the first of those that are asked for."""

    lengths: NDArray[np.uint32]
    batch: int
    window: int = 1

    @property
    def period(self) -> int:
        """Steps until all of them come again."""
        return len(self.lengths) // gcd(len(self.lengths), self.batch)

    def of(self, step: int) -> Array:
        """The lengths of the samples that come in a step."""
        first = step * self.batch % len(self.lengths)
        own = np.arange(first, first + self.batch) % len(self.lengths)
        return self.lengths[own].astype(np.int64)

    def apart(self, steps: Sequence[int]) -> tuple[list[int], Array]:
        """The steps of those windows that have no others like them, and for every step the place
        there of the one that is like it. The steps of a window come one after the other."""
        places, found, which = dict[tuple[int, int], int](), list[int](), list[int]()
        for begin in range(0, len(steps), self.window):
            own = steps[begin : begin + self.window]
            key = own[0] % self.period, len(own)
            if key not in places:
                places[key] = len(found)
                found += own
            which += range(places[key], places[key] + len(own))
        return found, np.array(which, np.int64)

    def moved(self, steps: Sequence[int], pool: Pool) -> "Steps":
        """These steps, window after window, with samples moved where that makes them shorter on
        these pipelines."""
        to: Rows = np.broadcast_to(np.uint16(0), (len(steps), self.batch))
        if self.window > 1:
            to = np.empty(to.shape, np.uint16)
            for begin in range(0, len(steps), self.window):
                came = [self.of(step) for step in steps[begin : begin + self.window]]
                own = to[begin : begin + len(came)].reshape(-1)
                for number, kept in enumerate(reordered(pool, came, self.window)):
                    own[kept] = number
        return Steps(self, steps, to)


@dataclass(frozen=True, eq=False)
class Steps:
    """to: of each sample that comes in one of these steps, the step of its window that has it,
    counted from the window's first. A step has its samples in the order in which they come."""

    samples: Samples
    steps: Sequence[int]
    to: Rows

    def lengths(self) -> Iterator[Array]:
        """The lengths of each step's samples, some steps at a time."""
        for own in self._blocks(np.arange(len(self.steps))):
            came = np.stack([self.samples.of(self.steps[at]) for at in own.tolist()])
            yield came.ravel()[self._order(own)].reshape(came.shape)

    def table(self, rows: Rows, which: Array, most: int) -> Iterator[Array]:
        """The table of steps that are like `which` of these, some rows at a time. rows: the
        microbatches of each step's samples; most: the most microbatches of any step."""
        for own in self._blocks(which):
            found = np.empty((len(own), self.samples.batch), np.int64)
            numbers = np.arange(len(own))[:, None] % self.samples.window
            found.reshape(-1)[self._order(own)] = tables.entries(numbers, rows[own], most).ravel()
            yield found

    def _blocks(self, which: Array) -> Iterator[Array]:
        """Some windows at a time."""
        window = self.samples.window
        size = window * max(1, _BLOCK // window)
        return (which[begin : begin + size] for begin in range(0, len(which), size))

    def _order(self, own: Array) -> Array:
        """The samples that come in such steps, whole windows, in the order in which steps have
        them."""
        window = self.samples.window
        begins = np.arange(len(own)) // window * window
        return np.argsort((begins[:, None] + self.to[own]).ravel(), kind="stable")
