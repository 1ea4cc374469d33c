"""The stages of a pipeline: a chain of layers, cut such that the longest load is least.

A load is the time in a round for which a replica computes or sends, whichever is longer. A table
says for every point, from the rear to the front, how long the longest load is from there on; so
cuts are exact, whatever the loads. Where stages take turns on devices, one device may then
have most of the long ones; turns that are cut one by one are mostly fairer:

    10 layers, 6 stages on 2 devices   2 1  2 1  2 2     6 and 4 layers
                                       1 1  2 2  2 2     5 and 5
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NEVER = 1 << 62  # longer than any load
_CLEARLY = 0.97  # of the busiest device's load, to cut turn by turn: stages are less even then
Table = NDArray[np.int64]
"""By a stage's first and its last point."""


class StageWork(NamedTuple):
    """Times of a layer.

    time: forward and backward of a microbatch. once: in a round, whatever the microbatches. hop: of
    a microbatch's input, over the link from another device. exchange: of the parameters over that
    link; replicas send gradients to their owners, and owners the new parameters back. team: the
    replicas that its stage must have, 0 for any.
    """

    time: int
    once: int = 0
    hop: int = 0
    exchange: int = 0
    team: int = 0


def cut(
    layers: Sequence[StageWork],
    replicas: Sequence[int],
    microbatches: int,
    points: Sequence[int],
    turns: int = 1,
) -> tuple[int, ...]:
    """The points at which stages of so many replicas begin, and the end; none if there are no such
    stages.

    points: where stages may begin and end, 0 and the number of layers among them
    (`planner.shards.cut_points` keeps tied layers together). turns: so many stages on every device.
    Of equally good cuts those with the evenest loads, unless others are clearly better for the
    busiest device.
    """
    of = {n: _loads(layers, n, microbatches, points) for n in set(replicas)}
    tables = [of[n] for n in replicas]
    found = _evenest(tables * turns)
    if turns > 1 and len(tables) > 1 and found:
        other = _by_turns(tables, turns)
        if other and _busiest(tables, other) < _busiest(tables, found) * _CLEARLY:
            found = other
    return tuple(points[one] for one in found)


def _busiest(tables: Sequence[Table], at: Sequence[int]) -> int:
    """The largest sum of a device's loads."""
    sums = [0] * len(tables)
    for stage, (first, end) in enumerate(pairwise(at)):
        sums[stage % len(tables)] += int(tables[stage % len(tables)][first, end])
    return max(sums)


def _by_turns(tables: Sequence[Table], turns: int) -> list[int]:
    """The cuts of each turn by itself, of all turns together those with the least sum of squares of
    their longest loads; none if there are too few points."""
    longest = tables[0].astype(np.float64)  # sums of what never is are far from the greatest
    for loads in tables[1:]:
        longest = _least_longest(longest, loads)
    longest **= 2
    sums, ends = longest[:, -1], list[NDArray[np.intp]]()
    for _ in range(turns - 1):
        every = longest + sums
        ends.append(every.argmin(axis=1))
        sums = every.min(axis=1)
    begins = [0]
    for end in reversed(ends):
        begins.append(int(end[begins[-1]]))
    at = [0]
    for first, last in pairwise([*begins, len(longest) - 1]):
        own = _evenest([table[first : last + 1, first : last + 1] for table in tables])
        if not own:
            return []
        at += [first + one for one in own[1:]]
    return at


def _least_longest(before: NDArray[Any], behind: NDArray[Any]) -> NDArray[Any]:
    """By the first and the last point, the least longest load, wherever the two meet."""
    found = np.full_like(before, _NEVER)
    for place in range(len(before)):
        longest = np.maximum(before[:, place, None], behind[place])
        np.minimum(found, longest, out=found)
    return found


def _evenest(tables: Sequence[Table]) -> list[int]:
    """The places of the cuts with the least longest load, of these those with the least sum of
    squared loads; none if there are too few points."""
    count = len(tables[0])
    if count < 2:
        return []
    longest = np.full(count, _NEVER)
    longest[-1] = 0
    for loads in reversed(tables):
        longest = np.maximum(loads, longest).min(axis=1)
    if (most := int(longest[0])) >= _NEVER:
        return []
    squares = np.full(count, np.inf)
    squares[-1] = 0
    ends = list[NDArray[np.intp]]()
    for loads in reversed(tables):
        sums = np.where(loads <= most, (loads / max(most, 1)) ** 2, np.inf) + squares
        ends.append(sums.argmin(axis=1))
        squares = sums.min(axis=1)
    at = [0]
    for end in reversed(ends):
        at.append(int(end[at[-1]]))
    return at


def _loads(
    layers: Sequence[StageWork], replicas: int, microbatches: int, points: Sequence[int]
) -> Table:
    """The load of a replica that has an equal part of the microbatches, and of the parameters as
    their owner; `_NEVER` where the last point is not behind the first, or a layer between them must
    have other replicas."""
    time, once, hop, exchange, team = np.array(layers, dtype=np.int64).T
    time, once, exchange = (_sums(part, points) for part in (time, once, exchange))
    sent = np.append(hop, 0)[list(points)]
    sent[0] = 0  # nothing comes from before the first layer
    each = -(-microbatches // replicas)
    owned = -(-2 * (replicas - 1) * exchange // replicas)
    loads = np.maximum(each * time + once, each * (sent[:, None] + sent) + owned)
    others = _sums((team > 0) & (team != replicas), points)
    return np.where(np.triu(others == 0, 1), loads, _NEVER)


def _sums(part: NDArray[Any], points: Sequence[int]) -> Table:
    """The sums for the layers between two points."""
    sums: Table = np.append(0, part.cumsum())[list(points)]
    return sums - sums[:, None]
