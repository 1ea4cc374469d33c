"""The best way found to train a task with lengths: ways are judged by estimates, then by their
rounds for some of its steps; the shortest is taken for all of them."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from planner.errors import Infeasible
from planner.inputs import Effort
from planner.packing import How
from planner.sequences.asked import Asked
from planner.sequences.bounds import compute_us
from planner.sequences.made import Made, lowered
from planner.sequences.mix import Mix
from planner.sequences.ways import FINEST, Trial, least_way, proposed, thrifty, tried, ways
from plans.prediction import Alternative

_SAMPLE, _GUESSED = 48, 12  # steps by which ways are judged: by their rounds, by estimates
_LOWERED = 8  # ways with rounds, and the best of each mix
_PIECES = (1, 2, FINEST)  # shards of a stage
_PACKED: tuple[How, ...] = ("balanced", "ffd", "fixed", "pad")


@dataclass(frozen=True)
class Wanted:
    """What is looked at, on so many devices: mixes of pipelines, none for the best ones, and a way
    to pack, None for the best one."""

    devices: int
    mixes: Sequence[Mix]
    how: How | None

    @property
    def first(self) -> How:
        """The way by which mixes are compared."""
        return self.how or _PACKED[0]


class _Search:
    """Lives while a way is searched. few: some of the steps."""

    def __init__(self, asked: Asked, wanted: Wanted, effort: Effort, folder: Path) -> None:
        self.asked, self.wanted, self.effort = asked, wanted, effort
        self.few = asked.steps[:_SAMPLE]
        self.made: list[Made] = []
        self.needs: list[int] = []  # bytes of a device, of what did not fit
        self._table = folder / "table"
        stride = max(1, len(self.few) // _GUESSED)
        self._steps = [asked.step(number) for number in self.few[::stride]]
        self.mixes = wanted.mixes or proposed(
            asked, wanted.devices, self._steps, wanted.first, effort
        )

    @property
    def late(self) -> bool:
        return bool(self.made) and self.effort.left <= 0

    def look(self, trial: Trial, how: How) -> None:
        """Make a way's rounds for some steps."""
        found = lowered(trial, how, self.few, self._table, 1, self.effort)
        if isinstance(found, Made):
            self.made.append(found)
        else:
            self.needs.append(found)

    def run(self) -> None:
        """The ways that seem shortest, then the best one packed otherwise; where nothing fits,
        those that need least."""
        for trial in self._promising():
            if not self.late and len(self.made) < _LOWERED + len(self.mixes):
                self.look(trial, self.wanted.first)
        if not self.made:
            self.needs.clear()
            for mix in self.mixes:
                if least := thrifty(self.asked, least_way(self.asked, mix), self.effort):
                    self.look(least, self.wanted.first)
        elif self.wanted.how is None:
            best = min(self.made, key=lambda one: one.us)
            for how in _PACKED[1:]:
                if not self.late:
                    self.look(best.trial, how)

    def _promising(self) -> Iterator[Trial]:
        """The best of each mix by its estimate, then all others."""
        found = list[tuple[int, Trial]]()
        for way in ways(self.asked, self.mixes, self.effort):
            for pieces in _PIECES:
                if found and self.effort.left <= 0:
                    break
                if trial := tried(self.asked, way, pieces, self.effort):
                    found.append((trial.step_us(self._steps, self.wanted.first), trial))
        ranked = [trial for _, trial in sorted(found, key=lambda pair: pair[0])]
        firsts = {trial.way.mix: trial for trial in reversed(ranked)}.values()
        ahead = sorted(firsts, key=ranked.index)
        yield from chain(ahead, (trial for trial in ranked if trial not in ahead))


def best(
    asked: Asked, wanted: Wanted, table: Path, jobs: int, effort: Effort
) -> tuple[Made, list[Alternative]]:
    """The shortest way found for all steps, with their table at this path; and what was tried."""
    with tempfile.TemporaryDirectory() as folder:
        search = _Search(asked, wanted, effort, Path(folder))
        search.run()
    for one in sorted(search.made, key=lambda one: one.us):
        found = lowered(one.trial, one.how, asked.steps, table, jobs, effort)
        if isinstance(found, Made):
            told = [_told(one, search.made, other) for other in search.made]
            return found, sorted(told, key=lambda one: (one.why_not != "", one.period_us))
        search.needs.append(found)
    raise _too_little(asked, min(search.needs, default=0))


def _told(best: Made, every: Sequence[Made], one: Made) -> Alternative:
    """A way, as a plan tells of it."""
    asked, way, least = one.trial.asked, one.trial.way, min(made.us for made in every)
    longer = f"{(one.us - least) * 100 / least:.1f} % longer"
    return Alternative(
        task=asked.task.name,
        devices=way.mix.devices,
        layout=str(way.mix),
        order=f"{one.round.strategy.named}, {one.how}{one.padding}",
        microbatch=one.round.strategy.costs.microbatch,
        recompute=sum(m.activations == "recompute" for m in one.round.strategy.modes[:-1]),
        period_us=one.us // one.steps,
        bound_us=compute_us(asked, way.mix.devices) // asked.task.steps,
        peak_bytes=one.round.device_bytes,
        why_not="" if one is best else longer,
    )


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
