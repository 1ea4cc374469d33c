"""The best way found to train a task with lengths: ways are judged by estimates, then by their
rounds for some of its steps; the shortest is taken for all of them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from planner.dispatch import Pool
from planner.errors import Infeasible
from planner.inputs import Effort, Layout
from planner.packing import Array, Asked, How
from planner.sequences.made import Made, lowered
from planner.sequences.ways import (
    FINEST,
    Trial,
    evenly,
    least_way,
    otherwise,
    proposed,
    thrifty,
    tried,
    ways,
)

_SAMPLE, _GUESSED = 48, 12  # steps by which ways are judged: by their rounds, by estimates
_REORDERED = 3  # mixes and packings whose best ways are tried in other orders
_LOWERED = 8  # ways with rounds, and the best of each mix
_PIECES = (1, 2, FINEST)  # shards of a stage
_PACKED: tuple[How, ...] = ("balanced", "ffd", "fixed", "pad")


@dataclass(frozen=True)
class Wanted:
    """The ways that are looked at, on so many devices: layouts, none for the best ones,
    and a way to pack, None for the best one."""

    devices: int
    layouts: Sequence[Layout]
    how: How | None

    @property
    def hows(self) -> tuple[How, ...]:
        """The ways to pack that are compared."""
        return (self.how,) if self.how else _PACKED

    @property
    def first(self) -> How:
        """The way to pack where memory alone counts."""
        return self.hows[0]


class _Search:
    """Lives while a way is searched. few: some of the steps."""

    def __init__(self, asked: Asked, wanted: Wanted, effort: Effort) -> None:
        self.asked, self.wanted, self.effort = asked, wanted, effort
        self.few = evenly(asked.steps, _SAMPLE, asked.window)
        self.made: list[Made] = []
        self.trials: list[Trial] = []
        self.needs: list[int] = []  # bytes of a device, of what did not fit
        self._guessed = evenly(self.few, _GUESSED, asked.window)
        self.layouts = wanted.layouts or proposed(
            asked, wanted.devices, self._steps, wanted.first, effort
        )

    @property
    def late(self) -> bool:
        return bool(self.made) and self.effort.left <= 0

    def look(self, trial: Trial, how: How) -> None:
        """Make a way's rounds for some steps."""
        found = lowered(trial, how, self.few, 1, self.effort)
        if isinstance(found, Made):
            self.made.append(found)
        else:
            self.needs.append(found)

    def run(self) -> None:
        """The ways that seem shortest; where nothing fits, those that need least."""
        for how, trial in self._promising():
            if not self.late and len(self.made) < self._most:
                self.look(trial, how)
        for trial, how in self._shortest():
            for other in otherwise(trial):
                if not self.late:
                    self.look(other, how)
        if not self.made:
            self.needs.clear()
            for layout in self.layouts:
                if least := thrifty(self.asked, least_way(self.asked, layout), self.effort):
                    self.look(least, self.wanted.first)

    def _steps(self, pool: Pool) -> list[Array]:
        """The steps by which estimates go: the lengths of the samples that they have on these
        pipelines."""
        moved = self.asked.samples.moved(self._guessed, pool)
        return [*chain.from_iterable(moved.lengths())]

    def _shortest(self) -> list[tuple[Trial, How]]:
        """The best ways of the mixes and packings that are shortest: other orders are tried."""
        best: dict[tuple[Layout, How], Made] = {}
        for one in sorted(self.made, key=lambda made: made.us):
            best.setdefault((one.trial.way.layout, one.how), one)
        return [(one.trial, one.how) for one in [*best.values()][:_REORDERED]]

    @property
    def _most(self) -> int:
        """The rounds that are made at most."""
        return _LOWERED + len(self.layouts) * len(self.wanted.hows)

    def _promising(self) -> Iterator[tuple[How, Trial]]:
        """The best of each mix and packing by its estimate, then all others."""
        for way in ways(self.asked, self.layouts, self.effort):
            for pieces in _PIECES:
                if self.trials and self.effort.left <= 0:
                    break
                if trial := tried(self.asked, way, pieces, self.effort):
                    self.trials.append(trial)
        found = [
            (trial.step_us(steps, how), how, trial)
            for trial in self.trials
            for steps in [self._steps(trial.pool)]
            for how in self.wanted.hows
        ]
        ranked = sorted(found, key=lambda one: one[0])
        seen = set[tuple[How, Layout]]()
        firsts, others = list[tuple[How, Trial]](), list[tuple[How, Trial]]()
        for _, how, trial in ranked:
            key = how, trial.way.layout
            (others if key in seen else firsts).append((how, trial))
            seen.add(key)
        yield from (*firsts, *others)


class Best(NamedTuple):
    """The shortest way found for all steps, and the same as it was judged by some; all others that
    were, ways without rounds, and the mixes that were looked at. laid_s: how many seconds all steps
    took to be laid out."""

    made: Made
    judged: Made
    tried: Sequence[Made]
    trials: Sequence[Trial]
    layouts: Sequence[Layout]
    laid_s: float


def best(asked: Asked, wanted: Wanted, jobs: int, effort: Effort) -> Best:
    """The shortest way found; Infeasible where there is none."""
    search = _Search(asked, wanted, effort)
    search.run()
    for one in sorted(search.made, key=lambda one: one.us):
        begun = time.monotonic()
        found = lowered(one.trial, one.how, asked.steps, jobs, effort)
        if isinstance(found, Made):
            laid_s = time.monotonic() - begun
            return Best(found, one, search.made, search.trials, search.layouts, laid_s)
        search.needs.append(found)
    raise _too_little(asked, min(search.needs, default=0))


def _too_little(asked: Asked, need: int) -> Infeasible:
    """The error where no way fits: pipelines have no memory for the longest sample."""
    name, longest, more = asked.task.name, asked.longest, asked.kind.taken_bytes
    if need <= asked.kind.device_bytes:
        return Infeasible(
            f"{name}: its longest sample has {longest} tokens, and the host has no memory for what "
            "devices do not hold of it; raise --host-memory",
            resource="host",
        )
    need, offered = need + more, asked.kind.device_bytes + more
    return Infeasible(
        f"{name}: its longest sample has {longest} tokens, for which a device needs {need} bytes "
        f"in any pipelines but offers {offered}; smallest --device-memory that would do: {need}",
        need,
    )
