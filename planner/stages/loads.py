"""The loads of all stages there can be: tables by a stage's first and last point.

A point is where layers may be cut; the stage between two points holds the layers between them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.stages.places import Fits, Place, Team
from planner.stages.work import Work, shared_out

NEVER = 1 << 62  # longer than any load
Table = NDArray[np.int64]


class Stages(NamedTuple):
    """The work of every stage on one kind of device: tables by its first and its last point."""

    time: Table
    once: Table
    hop: Table
    exchange: Table

    @classmethod
    def of(cls, layers: Sequence[Work], points: Sequence[int]) -> "Stages":
        """Of layers between two points."""
        time, once, hop, exchange = np.array(layers, dtype=np.int64).T
        cuts = np.append(hop, 0)[list(points)]
        cuts[0] = 0
        time, once, exchange = (_sums(part, points) for part in (time, once, exchange))
        return cls(time, once, cuts[:, None] + cuts, exchange)

    def owned(self, replicas: int) -> Table:
        """What a replica sends in a round, whatever the microbatches."""
        return np.negative(-2 * (replicas - 1) * self.exchange // replicas)

    def load(self, microbatches: int, replicas: int) -> Table:
        """As `Work.load`."""
        sent = microbatches * self.hop + self.owned(replicas)
        load: Table = np.maximum(microbatches * self.time + self.once, sent)
        return load

    def done(self, load: Table, replicas: int, most: int) -> Table:
        """The microbatches, up to `most`, that a replica can do with such a load."""
        parts = (self.time, self.once), (self.hop, self.owned(replicas))
        each = [np.where(t > 0, (load - o) // np.maximum(t, 1), most) for t, o in parts]
        able = np.where(load >= np.maximum(parts[0][1], parts[1][1]), np.minimum(*each), 0)
        return np.minimum(able, most)


def _sums(part: Table, points: Sequence[int]) -> Table:
    """Of the layers between two points."""
    sums: Table = np.append(0, part.cumsum())[list(points)]
    return sums - sums[:, None]


class Loads:
    """The load of every stage there can be, by place: tables by its first and its last point."""

    def __init__(
        self,
        layers: Sequence[Sequence[Work]],
        microbatches: int,
        points: Sequence[int] | None,
        fits: Fits | None,
    ) -> None:
        self.points = tuple(range(len(layers[0]) + 1) if points is None else points)
        self.rearmost = np.full(len(self.points), NEVER)
        self.rearmost[-1] = 0
        self._microbatches, self._fits = microbatches, fits
        self._stages = [Stages.of(kind, self.points) for kind in layers]
        self._tables: dict[Team, Table] = {}
        self._lowest: dict[Place, Table] = {}

    def at(self, place: Place) -> Table:
        """`NEVER` where the last point is not behind the first, or where the stage is too big."""
        if place.team not in self._tables:
            table = self._of(place.team)
            self._tables[place.team] = np.where(np.triu(table >= 0, 1), table, NEVER)
        table = self._tables[place.team]
        if self._fits is None:
            return table
        if place not in self._lowest:
            self._lowest[place] = self._fitting(place, self._fits)
        return np.where(np.arange(len(table))[:, None] >= self._lowest[place], table, NEVER)

    def shares(self, team: Team, first: int, end: int) -> tuple[int, ...]:
        """The microbatches of each replica of layers first..end-1."""
        at = self.points.index(first), self.points.index(end)
        works = [Work(*(int(part[at]) for part in self._stages[kind])) for kind in team]
        return shared_out(self._microbatches, works)

    def _of(self, team: Team) -> Table:
        """Of replicas of several kinds the least in which together they do all microbatches."""
        most, size = self._microbatches, len(team)
        stages = [self._stages[kind] for kind in team]
        if len(set(team)) == 1:
            return stages[0].load(-(-most // size), size)
        low, high = np.zeros_like(stages[0].time), stages[0].load(most, size)
        while (low < high).any():
            middle = (low + high) // 2
            enough = sum(stage.done(middle, size, most) for stage in stages) >= most
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
        return high

    def _fitting(self, place: Place, fits: Fits) -> Table:
        """For every last point the lowest first one from which it fits; that never goes back."""
        lowest, first = [0], 0
        for last, end in enumerate(self.points[1:], 1):
            while first < last and not fits(place, self.points[first], end):
                first += 1
            lowest.append(first)
        return np.array(lowest)
