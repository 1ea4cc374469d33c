"""The best way found to train a task with lengths: ways are judged by estimates, then by their
rounds for some of its steps; the shortest is taken for all of them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from planner.errors import Infeasible
from planner.inputs import Effort, Layout
from planner.packing import How, LengthsTask
from planner.pipelines import NO_ROOM, Estimate, rank_ways
from planner.search import short_devices, short_host_for
from planner.sequences.made import Made, lowered
from planner.sequences.ways import (
    FINEST,
    CostedConfig,
    as_asked,
    estimated,
    evenly,
    least_way,
    otherwise,
    proposed,
    thrifty,
)

_SAMPLE, _GUESSED = 48, 12  # steps by which ways are judged: by their rounds, by estimates
_REORDERED = 3  # mixes and packings whose best ways are tried in other orders
_OTHERS = 8  # ways that get rounds beside the best of each layout and packing
_OFF = 2  # steps are shorter than estimated by up to 1/n
_PIECES = (1, 2, FINEST)  # shards of a stage


@dataclass(frozen=True, eq=False)
class _Ranked:
    """A way to train and to pack, that is ranked. few: the steps by which it is judged; us: about
    how long they are in the mean."""

    trial: CostedConfig
    how: How
    few: Sequence[int]
    us: int
    effort: Effort

    def estimates(self) -> Iterator[Estimate]:
        """The estimated time of its steps, the only estimate."""
        yield Estimate(self.us, self.us - self.us // _OFF, "its estimate is longer", last=True)

    def made(self, shortest: int) -> Made | str:
        """Its rounds for a few steps."""
        found = lowered([(self.trial, self.few)], self.how, 1, self.effort)
        return NO_ROOM if isinstance(found, int) else found[0]


class _Search:
    """Lives while a way is searched."""

    def __init__(self, asked: LengthsTask, effort: Effort) -> None:
        self.asked, self.effort = asked, effort
        self.few = evenly(asked.steps, _SAMPLE)
        # The lengths of the samples of those by which estimates go.
        self._steps = [asked.step(number) for number in evenly(self.few, _GUESSED)]
        self.layouts = (
            [asked.layout.apart] if asked.layout else proposed(asked, self._steps, effort)
        )
        self.trials = [*estimated(asked, self.layouts, _PIECES, effort)]

    def run(self) -> list[Made]:
        """The best way of each layout and packing and others that seem short; the best of them also
        with passes in other orders."""
        every = [one for trial in self.trials for one in self._packed(trial, self.asked.hows)]
        every.sort(key=lambda one: one.us)
        firsts = {(one.trial.way.layout, one.how): one for one in reversed(every)}.values()
        others = [one for one in every if one not in firsts]
        found = self._made([*firsts]) + self._made(others[:_OTHERS])
        best: dict[tuple[Layout, How], Made] = {}
        for one in sorted(found, key=lambda made: made.us):
            best.setdefault((one.trial.way.layout, one.how), one)
        for one in [*best.values()][: _REORDERED * (self.asked.order == "auto")]:
            again = (self._packed(trial, [one.how]) for trial in otherwise(one.trial))
            found += self._made([*chain.from_iterable(again)])
        return found

    def _made(self, every: Sequence[_Ranked]) -> list[Made]:
        """The rounds of those that get some."""
        return [made for _, made in rank_ways(every, self.effort) if not isinstance(made, str)]

    def _packed(self, trial: CostedConfig, hows: Sequence[How]) -> Iterator[_Ranked]:
        """The ways to pack; in pipelines of one stage only those by which times differ."""
        seen = set[int]()
        for how in hows:
            us = trial.step_us(self._steps, how)
            if us not in seen or trial.way.layout.depth > 1:
                yield _Ranked(trial, how, self.few, us, self.effort)
            seen.add(us)

    def least(self) -> tuple[list[Made], list[int]]:
        """Rounds of the ways that need least memory, for when nothing else fits; and the bytes of a
        device that those need which do not fit either."""
        found, needs = list[Made](), list[int]()
        for layout in self.layouts:
            least = thrifty(self.asked, least_way(self.asked, layout), self.effort)
            for trial in as_asked(least) if least else ():
                made = lowered([(trial, self.few)], self.asked.hows[0], 1, self.effort)
                needs += [made] if isinstance(made, int) else []
                found += [] if isinstance(made, int) else made
        return found, needs


class Best(NamedTuple):
    """The shortest way found for all steps, and the same as it was judged by some; all others that
    were, ways without rounds, and the mixes that were looked at. laid_s: how many seconds all steps
    took to be laid out."""

    made: Made
    judged: Made
    tried: Sequence[Made]
    trials: Sequence[CostedConfig]
    layouts: Sequence[Layout]
    laid_s: float


def best_by_lengths(asked: LengthsTask, jobs: int, effort: Effort) -> Best:
    """The shortest way found; Infeasible where there is none."""
    search = _Search(asked, effort)
    found, needs = search.run(), list[int]()
    if not found:
        found, needs = search.least()
    for one in sorted(found, key=lambda one: one.us):
        begun = time.monotonic()
        made = lowered([(one.trial, asked.steps)], one.how, jobs, effort)
        if not isinstance(made, int):
            laid_s = time.monotonic() - begun
            return Best(made[0], one, found, search.trials, search.layouts, laid_s)
        needs.append(made)
    raise _too_little(asked, min(needs, default=0))


def _too_little(asked: LengthsTask, need: int) -> Infeasible:
    """The error where no way fits: pipelines have no memory for the longest sample."""
    what = f"its longest sample has {asked.longest} tokens,"
    if need > asked.kind.device_bytes:
        return short_devices(asked.task, f"{what} for which any layout", need, asked.kind)
    return short_host_for(asked.task, what)
