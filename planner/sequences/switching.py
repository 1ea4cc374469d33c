"""Two mixes of pipelines in a plan: one holds any sample, the other is for steps without a very
long one.

    4         long  long                 long
    1+1+1+1               short  short         short      a segment for each run of steps

For some limits on a step's longest sample the best way for the steps within it is looked for; with
the best way for the others it makes a pair. Which way a step has follows from what all steps take
either way, and from what segments take to begin and to end. Pairs are judged by estimates; the
rounds of the best ones are made, with the same shards in the same modes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.bounds import samples_us
from planner.inputs import Effort, Layout
from planner.packing import Array, Asked, How, in_turn
from planner.sequences.choose import Best
from planner.sequences.made import InTurn, lowered
from planner.sequences.ways import Trial, estimated, evenly

_LIMITS = 4  # on the longest sample that are tried
_FEW = 12  # steps by which ways are judged, of those within the limit and of the others
_PIECES = (1, 2)  # shards of a stage
_WORTH = 0.99  # of the time of one way that two may take
_SEGMENTS = 10_000  # that a plan may list
_STARTS_US = 20_000  # what a run takes for a segment beside its ops, as measured

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two ways, of which the first holds any step. which: the way of every step. ratio: about the
    time of all steps, over that with one way for all."""

    ways: tuple[Trial, Trial]
    which: Array
    ratio: float


def switched(asked: Asked, one: Best, jobs: int, effort: Effort) -> InTurn:
    """This way for all steps, or two in turn where that is shorter by more than a hundredth. Pairs
    are left that there is no time to lay out."""
    best = InTurn([one.made])
    worth = _us(best) * _WORTH
    search = _Search(asked, one, effort)
    for pair in sorted(search.pairs(), key=lambda pair: pair.ratio):
        steps = np.array(asked.steps)
        parts = [(way, steps[pair.which == n].tolist()) for n, way in enumerate(pair.ways)]
        made = lowered(parts, one.made.how, jobs, effort) if effort.left > one.laid_s else 0
        if not isinstance(made, int):
            found = InTurn(made)
            if _us(found) < min(worth, _us(best)) and len(found.parts) <= _SEGMENTS:
                best = found
    return best


def _us(found: InTurn) -> int:
    """The time of all steps, as a run takes it."""
    return found.us + _STARTS_US * len(found.parts)


class _Search:
    """Lives while pairs are looked for."""

    def __init__(self, asked: Asked, one: Best, effort: Effort) -> None:
        self.asked, self.one, self.how, self.effort = asked, one.made.trial, one.made.how, effort
        self.trials, self.layouts = one.trials, one.layouts
        self.steps = np.array(asked.steps)
        self.longest = _longest(asked)

    def pairs(self) -> Iterator[Pair]:
        """The best pair of each limit, if it is worth it."""
        for limit in self._limits():
            found = self._pairs(self.longest <= limit) if self.effort.left > 0 else ()
            if pair := min(found, key=lambda pair: pair.ratio, default=None):
                yield pair

    def _limits(self) -> list[int]:
        """The limits that are tried: what pipelines hold, and quantiles."""
        held = {most for trial in self.trials for most in trial.way.most.values()}
        values = np.unique(self.longest)[:-1]
        held |= {*np.quantile(self.longest, (0.25, 0.5, 0.75, 0.9), method="lower").tolist()}
        found = sorted({int(values[values <= most][-1]) for most in held if (values <= most).any()})
        places = np.unique(np.linspace(0, len(found) - 1, _LIMITS).round().astype(int))
        return [found[at] for at in places] if found else []

    def _pairs(self, within: NDArray[np.bool_]) -> Iterator[Pair]:
        """Pairs for steps within a limit and the others that seem worth it."""
        samples = [_some(self.asked, self.steps[own]) for own in (within, ~within)]
        alone = self._took(self.one, within, samples)
        us = float(alone.sum()) + self.one.begin_us + _STARTS_US
        devices = self.one.way.layout.devices
        least = samples_us(self.asked, np.concatenate(samples[0]), devices) / len(samples[0])
        if _total(alone, within, least, (self.one.begin_us, 0))[1] > _WORTH * us:
            return
        short = replace(self.asked, few=tuple(self.steps[within].tolist()), judged=None)
        other = self._best(short, samples[0])
        for first in _firsts(self.trials, samples[1], self.how) if other else ():
            if other and first.way.layout != other.way.layout:
                took, begins = self._took(first, within, samples), (first.begin_us, other.begin_us)
                which, total = _total(took, within, other.step_us(samples[0], self.how), begins)
                if total < _WORTH * us and which.any():
                    yield Pair((first, other), which, total / us)

    def _took(
        self, trial: Trial, within: NDArray[np.bool_], samples: Sequence[Sequence[Array]]
    ) -> Floats:
        """About how long steps within a limit and the others take, by the samples of some."""
        return np.where(within, *(float(trial.step_us(own, self.how)) for own in samples))

    def _best(self, short: Asked, samples: Sequence[Array]) -> Trial | None:
        """The best way for these steps alone."""
        found = estimated(short, self.layouts, _PIECES, self.effort)
        return min(found, key=lambda trial: trial.step_us(samples, self.how), default=None)


def _longest(asked: Asked) -> Array:
    """The longest sample of every step."""
    return np.array([asked.step(number).max() for number in asked.steps])


def _some(asked: Asked, steps: Array) -> list[Array]:
    """The samples of some of these steps."""
    return [asked.step(number) for number in evenly(steps.tolist(), _FEW)]


def _firsts(trials: Sequence[Trial], steps: Sequence[Array], how: How) -> Iterator[Trial]:
    """The best way of each mix for these steps."""
    best: dict[Layout, tuple[int, Trial]] = {}
    for trial in trials:
        us = trial.step_us(steps, how)
        if us < best.get(trial.way.layout, (us + 1,))[0]:
            best[trial.way.layout] = us, trial
    return (trial for _, trial in best.values())


def _total(
    first: Floats, within: NDArray[np.bool_], other: float, begins: tuple[int, int]
) -> tuple[Array, float]:
    """The way of every step, and the time of all, where steps take so long in the first way, those
    within a limit so long in the other, and segments so long to begin and to end."""
    costs = np.stack([first, np.where(within, other, np.inf)], axis=1)
    return assigned(costs, [us + _STARTS_US for us in begins])


def assigned(costs: Floats, begins: Sequence[int]) -> tuple[Array, float]:
    """The way of every step by what it takes in each, and what a run of steps of a way takes
    besides; and what all take."""
    which = in_turn(costs, np.array(begins))
    runs = which[np.flatnonzero(np.diff(which, prepend=-1))]
    total = costs[np.arange(len(costs)), which].sum() + np.array(begins)[runs].sum()
    return which, float(total)
