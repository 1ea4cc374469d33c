"""The stages of a pipeline: a chain of layers, cut such that the longest load is least.

A load is the time in a round for which a replica computes or sends, whichever is longer. A table
says for every point, from the rear to the front, how long the longest load is from there on; so
cuts are exact, whatever the loads.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NEVER = 1 << 62  # longer than any load
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
    layers: Sequence[StageWork], replicas: Sequence[int], microbatches: int, points: Sequence[int]
) -> tuple[int, ...]:
    """The points at which stages of so many replicas begin, and the end; none if there are no such
    stages.

    points: where stages may begin and end, 0 and the number of layers among them
    (`planner.shards.cut_points` keeps tied layers together). With `replicas * v` every device gets
    v stages. Of equally good cuts those with the evenest loads.
    """
    of = {n: _loads(layers, n, microbatches, points) for n in set(replicas)}
    rearwards = [of[n] for n in reversed(replicas)]
    longest = np.full(len(points), _NEVER)
    longest[-1] = 0
    for loads in rearwards:
        longest = np.maximum(loads, longest).min(axis=1)
    return _evenest(rearwards, int(longest[0]), points) if longest[0] < _NEVER else ()


def _evenest(rearwards: Sequence[Table], most: int, points: Sequence[int]) -> tuple[int, ...]:
    """The cuts with the least sum of squared loads, no load above `most`."""
    squares = np.full(len(points), np.inf)
    squares[-1] = 0
    ends = list[NDArray[np.intp]]()
    for loads in rearwards:
        sums = np.where(loads <= most, (loads / max(most, 1)) ** 2, np.inf) + squares
        ends.append(sums.argmin(axis=1))
        squares = sums.min(axis=1)
    at = [0]
    for end in reversed(ends):
        at.append(int(end[at[-1]]))
    return tuple(points[one] for one in at)


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
