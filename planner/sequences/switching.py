"""Two mixes of pipelines in a plan: one holds any sample, the other is for steps without a very
long one.

    4         long  long                 long
    1+1+1+1               short  short         short      a segment for each run of steps

For some limits on a step's longest sample the best way for the steps within it is looked for; with
the best way for the others it makes a pair. Which way a step has follows from what all steps take
either way, and from what segments take to begin and to end. Pairs are judged by estimates; the
rounds of the best ones are made, with the same shards in the same modes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.bounds import samples_us
from planner.inputs import Effort, Layout
from planner.packing import Array, How, LengthsTask, cheapest_sequence, counted
from planner.sequences.choose import Best
from planner.sequences.made import InTurn, lowered
from planner.sequences.ways import CostedConfig, estimated, evenly

_LIMITS = 4  # on the longest sample that are tried
_FEW = 12  # steps by which ways are judged, of those within the limit and of the others
_PIECES = (1, 2)  # shards of a stage
_WORTH = 0.99  # of the time of one way that two may take
_SEGMENTS = 10_000  # that a plan may list
_STARTS_US = 20_000  # what a run takes for a segment beside its ops, as measured

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two ways, of which the first holds any step. which: the way of every step. us: about the time
    of all steps."""

    ways: tuple[CostedConfig, CostedConfig]
    which: Array
    us: float


def switched(asked: LengthsTask, one: Best, jobs: int, effort: Effort) -> InTurn:
    """This way for all steps, or two in turn where that is shorter by more than a hundredth. Pairs
    are left that there is no time to lay out."""
    best, steps = InTurn([one.made]), np.array(asked.steps)
    most = _us(best) * _WORTH
    for pair in _pairs(asked, one, effort):
        if effort.left <= one.laid_s:
            break
        parts = [(way, steps[pair.which == n].tolist()) for n, way in enumerate(pair.ways)]
        made = lowered(parts, one.made.how, jobs, effort)
        if not isinstance(made, int):
            found = InTurn(made)
            if _us(found) < most and len(found.parts) <= _SEGMENTS:
                best, most = found, _us(found)
    return best


def _us(found: InTurn) -> int:
    """The time of all steps, as a run takes it."""
    return found.us + _STARTS_US * len(found.parts)


def _pairs(asked: LengthsTask, one: Best, effort: Effort) -> list[Pair]:
    """The best pair of each limit, if it seems worth it, the shortest first."""
    longest = np.array([asked.step(number).max() for number in asked.steps])
    found = list[Pair]()
    for limit in _limits(one.trials, longest):
        if effort.left > 0:
            own = _limited(asked, one, longest <= limit, effort)
            found += sorted(own, key=lambda pair: pair.us)[:1]
    return sorted(found, key=lambda pair: pair.us)


def _limits(trials: Sequence[CostedConfig], longest: Array) -> list[int]:
    """The limits that are tried: what pipelines hold, and quantiles."""
    held = {most for trial in trials for most in trial.way.most.values()}
    values = np.unique(longest)[:-1]
    held |= {*np.quantile(longest, (0.25, 0.5, 0.75, 0.9), method="lower").tolist()}
    found = sorted({int(values[values <= most][-1]) for most in held if (values <= most).any()})
    places = np.unique(np.linspace(0, len(found) - 1, _LIMITS).round().astype(int))
    return [found[at] for at in places] if found else []


def _limited(
    asked: LengthsTask, one: Best, within: NDArray[np.bool_], effort: Effort
) -> Iterator[Pair]:
    """Pairs for steps within a limit and the others that seem worth it."""
    steps, how, alone = np.array(asked.steps), one.made.how, one.made.trial
    samples = [
        [asked.step(number) for number in evenly(steps[own].tolist(), _FEW)]
        for own in (within, ~within)
    ]

    def took(trial: CostedConfig) -> Floats:
        """About how long each step takes in a way that holds any."""
        return np.where(within, *(float(trial.step_us(own, how)) for own in samples))

    most = _WORTH * (float(took(alone).sum()) + alone.begin_us + _STARTS_US)
    few = counted(np.concatenate(samples[0]))
    least = samples_us(asked, few, asked.devices) / len(samples[0])
    if _total(took(alone), within, least, (alone.begin_us, 0))[1] > most:
        return
    short = replace(asked, few=tuple(steps[within].tolist()), held_out=None)
    trials = estimated(short, one.layouts, _PIECES, effort)
    other = min(trials, key=lambda trial: trial.step_us(samples[0], how), default=None)
    for first in _firsts(one.trials, samples[1], how) if other else ():
        if other and first.way.layout != other.way.layout:
            begins = first.begin_us, other.begin_us
            us = other.step_us(samples[0], how)
            which, total = _total(took(first), within, us, begins)
            if total < most and which.any():
                yield Pair((first, other), which, total)


def _firsts(
    trials: Sequence[CostedConfig], steps: Sequence[Array], how: How
) -> Iterable[CostedConfig]:
    """The best way of each mix for these steps."""
    best: dict[Layout, CostedConfig] = {}
    for trial in sorted(trials, key=lambda trial: trial.step_us(steps, how)):
        best.setdefault(trial.way.layout, trial)
    return best.values()


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
    which = cheapest_sequence(costs, np.array(begins))
    runs = which[np.flatnonzero(np.diff(which, prepend=-1))]
    total = costs[np.arange(len(costs)), which].sum() + np.array(begins)[runs].sum()
    return which, float(total)
