"""Contiguous cuts of a chain of layers into the stages of a pipeline: the longest load is least.

A stage is a run of layers on a *team*, the devices that have replicas of it. Teams are tried from
the rear of the pipeline to its front, and a table says for every layer how long the longest load is
from there on; so cuts are exact, whatever the loads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement, pairwise, product
from typing import NamedTuple

import numpy as np

from planner.stages.loads import NEVER, Loads
from planner.stages.places import Fits, Place, Team
from planner.stages.work import Work


@dataclass(frozen=True)
class Cuts:
    """A chain cut into stages.

    bottleneck: the longest time in a round for which a device computes or sends. points: 0, the
    first layer of every further stage, and the number of layers. shares: the microbatches of each
    stage's replicas.
    """

    bottleneck: int
    points: tuple[int, ...]
    teams: tuple[Team, ...]
    shares: tuple[tuple[int, ...], ...]


def cut(
    layers: Sequence[Sequence[Work]],
    teams: Sequence[Team],
    microbatches: int,
    *,
    points: Sequence[int] | None = None,
    fits: Fits | None = None,
    hops: Sequence[Sequence[int]] | None = None,
) -> Cuts | None:
    """The best cuts into given stages; None where there are none.

    layers: by kind of device. points: where stages may begin and end, 0 and the end among them
    (`planner.shards.cut_points` keeps tied layers together). hops: between every two stages what
    each layer's input takes, where links differ. With `teams * v` every team gets v stages. Of
    equally good cuts those with the evenest loads.
    """
    behind = list(accumulate((len(team) for team in reversed(teams)), initial=0))
    steps = [
        _Step((rear,), Place(team, behind[rear + 1], len(teams) - 1 - rear), (rear + 1,))
        for rear, team in enumerate(reversed(teams))
    ]
    return _best(steps, [(len(teams),)], Loads(layers, microbatches, points, fits, hops))


def cut_freely(
    layers: Sequence[Sequence[Work]],
    devices: Sequence[int],
    microbatches: int,
    *,
    replicas: Sequence[int] | None = None,
    points: Sequence[int] | None = None,
    fits: Fits | None = None,
) -> Cuts | None:
    """The best cuts for so many devices of each kind, in whatever order.

    replicas: of each stage. Where they are not given there are as many stages and replicas as is
    best, on no more devices than help. For a few devices of several kinds, or dozens of one.
    """
    steps = list(_free(devices, replicas))
    fronts = {step.whole for step in steps if not replicas or step.whole[0] == len(replicas)}
    fewest = sorted(fronts, key=lambda state: (sum(state), state))
    return _best(steps, fewest, Loads(layers, microbatches, points, fits))


State = tuple[int, ...]
"""The rear of a pipeline: its number of stages if that is given, and the devices of each kind."""


class _Step(NamedTuple):
    """A stage put in front of a rear."""

    rear: State
    place: Place
    whole: State


def _free(devices: Sequence[int], replicas: Sequence[int] | None) -> Iterator[_Step]:
    """Every stage before every rear that these devices allow, rears of fewer devices first."""
    rears = {(0,) * (len(devices) + 1)}
    for used in sorted(product(*(range(count + 1) for count in devices)), key=sum):
        left = [count - taken for count, taken in zip(devices, used, strict=True)]
        for stage in range(len(replicas) if replicas else 1):
            sizes = [replicas[-1 - stage]] if replicas else range(1, sum(left) + 1)
            for team in (team for size in sizes for team in _teams(left, size)):
                if (stage, *used) in rears:
                    more = (count + team.count(kind) for kind, count in enumerate(used))
                    whole = (stage + bool(replicas), *more)
                    rears.add(whole)
                    yield _Step((stage, *used), Place(team, sum(whole[1:])), whole)


def _teams(left: Sequence[int], size: int) -> Iterator[Team]:
    """Every choice of so many devices of those that are left."""
    for team in combinations_with_replacement(range(len(left)), size):
        if all(team.count(kind) <= count for kind, count in enumerate(left)):
            yield team


def _best(steps: Sequence[_Step], fronts: Sequence[State], loads: Loads) -> Cuts | None:
    """The cuts of the least bottleneck; of these the first front, and there the evenest."""
    least = {steps[0].rear: loads.rearmost} if steps else {}
    for step in steps:
        longest = np.maximum(loads.at(step.place), least[step.rear]).min(axis=1)
        least[step.whole] = np.minimum(longest, least.get(step.whole, NEVER))
    bottleneck = int(min((least[front][0] for front in fronts), default=NEVER))
    if bottleneck >= NEVER:
        return None
    front = next(front for front in fronts if least[front][0] == bottleneck)
    return _evenest(steps, front, bottleneck, loads)


def _evenest(steps: Sequence[_Step], front: State, bottleneck: int, loads: Loads) -> Cuts:
    """The cuts of a front with the least sum of squared loads, none above the bottleneck."""
    squares = {steps[0].rear: np.where(loads.rearmost == 0, 0.0, np.inf)}
    taken: dict[tuple[State, int], tuple[_Step, int]] = {}  # by whole and first point; and the end
    for step in steps:
        table = loads.at(step.place)
        square = np.where(table <= bottleneck, (table / max(bottleneck, 1)) ** 2, np.inf)
        sums = square + squares[step.rear]
        ends = sums.argmin(axis=1)
        best = sums[np.arange(len(ends)), ends]
        known = squares.setdefault(step.whole, np.full(len(ends), np.inf))
        for first in np.flatnonzero(best < known):
            taken[step.whole, int(first)] = step, int(ends[first])
        squares[step.whole] = np.minimum(best, known)
    ats, places = [0], list[Place]()
    while front != steps[0].rear:
        step, end = taken[front, ats[-1]]
        ats.append(end)
        places.append(step.place)
        front = step.rear
    stages = zip(places, pairwise(ats), strict=True)
    shares = tuple(loads.shares(place, *ends) for place, ends in stages)
    points = tuple(loads.points[at] for at in ats)
    return Cuts(bottleneck, points, tuple(place.team for place in places), shares)
