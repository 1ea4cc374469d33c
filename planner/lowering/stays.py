"""The stays of a shard's parameters on a device, in turns of its compute stream.

turns      F0 F0 F0 F1 F1 F1 | B2 B2 B2 B1 B1 B1 B0 B0 B0 U0
kept       s0 ................................ s0          loaded once
streamed   s0 .. s0                      s0 ... s0         loaded for each run of its turns
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import Turn


class Stay(NamedTuple):
    """Parameters of a shard from turn `first` to turn `last` of a device, loaded from turn `since`
    on; name: of the value."""

    name: str
    first: int
    last: int
    since: int


class Stays:
    """The stays of all shards on all devices, and the runs of each device."""

    def __init__(self, strategy: PipelineStrategy, turns: Sequence[Turn]) -> None:
        self.strategy = strategy
        own: list[list[Turn]] = [[] for _ in range(strategy.devices)]
        for turn in turns:
            if turn.kind != "U" or strategy.modes[turn.shard].update != "host":
                own[turn.device].append(turn)
        self.starts = [_starts(mine) for mine in own]
        self.of: dict[tuple[int, int], list[Stay]] = {}
        for device, mine in enumerate(own):
            used: dict[int, list[int]] = {}
            for at, turn in enumerate(mine):
                for k in self._needs(turn):
                    used.setdefault(k, []).append(at)
            for k, places in used.items():
                self.of[device, k] = list(self._stays(device, k, places, len(mine)))

    def _needs(self, turn: Turn) -> Iterable[int]:
        """The shards whose parameters a turn needs."""
        if turn.kind in "RN":
            return ()
        tied = turn.shard in self.strategy.holders and turn.kind != "U"
        return (turn.shard, self.strategy.owner or 0) if tied else (turn.shard,)

    def _stays(self, device: int, k: int, used: list[int], count: int) -> Iterable[Stay]:
        mode, name = self.strategy.modes[k], f"s{k}.param"
        if mode.params == "resident":
            yield Stay(name, 0, count, 0)
            return
        runs = [(used[0], used[-1])] if mode.params == "kept" else _runs(used)
        for number, (first, last) in enumerate(runs):
            own = f"{name}.{number}" if number else name
            yield Stay(own, first, last, self.before(device, first))

    def before(self, device: int, turn: int) -> int:
        """The first turn of the run before the one with this turn: what comes for it may come
        then."""
        earlier = [start for start in self.starts[device] if start <= turn][:-1]
        return earlier[-1] if earlier else -1

    def at(self, device: int, k: int, turn: int) -> Stay:
        """The stay of a shard at a turn."""
        return next(stay for stay in self.of[device, k] if turn <= stay.last)


def _starts(turns: Sequence[Turn]) -> list[int]:
    """The first turn of every run of one shard, up or down."""
    keyed = groupby(enumerate(turns), key=lambda pair: (pair[1].shard, pair[1].kind == "F"))
    return [next(group)[0] for _, group in keyed]


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Places that follow each other, as the first and the last of each run."""
    runs: list[tuple[int, int]] = []
    for at in places:
        if runs and runs[-1][1] == at - 1:
            runs[-1] = runs[-1][0], at
        else:
            runs.append((at, at))
    return runs
