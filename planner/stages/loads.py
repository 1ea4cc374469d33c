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
        """The loads of the layers between every two points."""
        time, once, hop, exchange = np.array(layers, dtype=np.int64).T
        time, once, exchange = (_sums(part, points) for part in (time, once, exchange))
        return cls(time, once, _sent(hop, hop, points), exchange)

    def owned(self, replicas: int) -> Table:
        """The time a replica sends in a round, whatever the microbatches."""
        return np.negative(-2 * (replicas - 1) * self.exchange // replicas)

    def load(self, microbatches: int, replicas: int) -> Table:
        """As `Work.load`."""
        sent = microbatches * self.hop + self.owned(replicas)
        load: Table = np.maximum(microbatches * self.time + self.once, sent)
        return load

    def done(self, load: Table, replicas: int, most: int) -> Table:
        """The microbatches that a replica can do with such a load; `most` if it takes no time."""
        parts = (self.time, self.once), (self.hop, self.owned(replicas))
        each = [np.where(t > 0, (load - o) // np.maximum(t, 1), most) for t, o in parts]
        return np.where(load >= np.maximum(parts[0][1], parts[1][1]), np.minimum(*each), 0)


def _sums(part: Table, points: Sequence[int]) -> Table:
    """The sums for the layers between two points."""
    sums: Table = np.append(0, part.cumsum())[list(points)]
    return sums - sums[:, None]


def _sent(front: Table, back: Table, points: Sequence[int]) -> Table:
    """The times of sends over the boundaries in front and behind; 0 at the ends of the chain."""
    before, behind = (np.append(hops, 0)[list(points)] for hops in (front, back))
    before[0] = 0
    sent: Table = before[:, None] + behind
    return sent


class Loads:
    """The load of every stage there can be, by place: tables by its first and its last point."""

    def __init__(
        self,
        layers: Sequence[Sequence[Work]],
        microbatches: int,
        points: Sequence[int] | None,
        fits: Fits | None,
        hops: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.points = tuple(range(len(layers[0]) + 1) if points is None else points)
        self.rearmost = np.full(len(self.points), NEVER)
        self.rearmost[-1] = 0
        self._microbatches, self._fits = microbatches, fits
        self._stages = [Stages.of(kind, self.points) for kind in layers]
        none = np.zeros(len(layers[0]), dtype=np.int64)
        self._hops = None
        if hops is not None:
            self._hops = [none, *(np.array(own, dtype=np.int64) for own in hops), none]
        self._tables: dict[tuple[Team, bytes], Table] = {}
        self._lowest: dict[Place, Table] = {}

    def at(self, place: Place) -> Table:
        """`NEVER` where the last point is not behind the first, or where the stage is too big."""
        key = place.team, b"".join(hop.tobytes() for hop in self._around(place))
        if key not in self._tables:
            table = self._of(self._replicas(place))
            self._tables[key] = np.where(np.triu(table >= 0, 1), table, NEVER)
        table = self._tables[key]
        if self._fits is None:
            return table
        if place not in self._lowest:
            self._lowest[place] = self._fitting(place, self._fits)
        return np.where(np.arange(len(table))[:, None] >= self._lowest[place], table, NEVER)

    def shares(self, place: Place, first: int, last: int) -> tuple[int, ...]:
        """The microbatches of each replica of the stage between two points."""
        replicas = self._replicas(place)
        works = [Work(*(int(part[first, last]) for part in stages)) for stages in replicas]
        return shared_out(self._microbatches, works)

    def _replicas(self, place: Place) -> list[Stages]:
        """The loads of stages at that place, by replica."""
        stages = [self._stages[kind] for kind in place.team]
        if hops := self._around(place):
            sent = _sent(hops[0], hops[1], self.points)
            return [one._replace(hop=sent) for one in stages]
        return stages

    def _around(self, place: Place) -> list[Table]:
        """The hops in front of a place and behind it; none where layers say them."""
        if self._hops is None or place.stage is None:
            return []
        return self._hops[place.stage : place.stage + 2]

    def _of(self, stages: list[Stages]) -> Table:
        """The least load with which replicas of several kinds do all microbatches together."""
        most, size = self._microbatches, len(stages)
        if all(one.time is stages[0].time for one in stages):
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
