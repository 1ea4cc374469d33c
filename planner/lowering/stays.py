"""Parameters and state on the devices: how long they stay, in turns of each compute stream.

turns      F0 F0 F0 F1 F1 F1 | B2 B2 B2 B1 B1 B1 B0 B0 B0 U0
kept       s0 ................................ s0          loaded once
streamed   s0 .. s0                      s0 ... s0         loaded for each run of its turns
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from planner.lowering.lives import Lives
from planner.lowering.strategy import PipelineStrategy
from planner.rounds import Copy, Turn
from planner.shards import Links, Strategy, Value
from plans.schema import Role


class Stay(NamedTuple):
    """Parameters of a shard from turn `first` to turn `last` of a device, loaded from turn `since`
    on; name: of the value."""

    name: str
    first: int
    last: int
    since: int


class Stays:
    """The stays of all shards on all devices. turns: those that compute, by device."""

    def __init__(
        self, strategy: PipelineStrategy | Strategy, turns: Sequence[Sequence[Turn]]
    ) -> None:
        self.strategy, self.turns = strategy, turns
        self.count = [len(own) for own in turns]
        self.starts = [[] if strategy.stretches else _starts(own) for own in turns]
        self.of: dict[tuple[int, int], list[Stay]] = {}
        for device, own in enumerate(turns):
            used: dict[int, list[int]] = {}
            late: dict[int, int] = {}  # updates behind all norms, which parameters stay for
            for at, turn in enumerate(own):
                for k in self.needs(turn):
                    waits = strategy.stretches and strategy.costs.noted and turn.kind == "U"
                    if waits and strategy.modes[k].params == "streamed":
                        late[k] = at
                    else:
                        used.setdefault(k, []).append(at)
            for k, places in used.items():
                self.of[device, k] = list(self._stays(device, k, places, late.get(k)))

    def needs(self, turn: Turn) -> Sequence[int]:
        """The shards whose parameters a turn needs: its own, and the owner of tied ones."""
        if turn.kind in "RN":
            return ()
        if turn.kind == "block":
            return range(turn.shard, self.strategy.last + 1)
        tied = turn.shard in self.strategy.holders and turn.kind != "U"
        return (turn.shard, self.strategy.owner or 0) if tied else (turn.shard,)

    def _stays(self, device: int, k: int, used: list[int], late: int | None) -> Iterator[Stay]:
        mode, name = self.strategy.modes[k], f"s{k}.param"
        if mode.params == "resident":
            yield Stay(name, 0, self.count[device], 0)
            return
        runs = [(used[0], used[-1])] if mode.params == "kept" else _runs(used)
        runs[-1] = runs[-1][0], late or runs[-1][1]
        for number, (first, last) in enumerate(runs):
            own = f"{name}.{number}" if number else name
            yield Stay(own, first, last, self.before(device, first))

    def before(self, device: int, turn: int) -> int:
        """The first turn of the run before the one with this turn: what comes for it may come
        then, or where lives are stretched as early as there is room."""
        if self.strategy.stretches:
            return turn
        starts = self.starts[device]
        at = bisect_right(starts, turn) - 2
        return starts[at] if at >= 0 else -1

    def at(self, device: int, k: int, turn: int) -> Stay:
        """The stay of a shard at a turn."""
        for stay in self.of[device, k]:
            if turn <= stay.last:
                break
        return stay

    def here(self, turn: Turn, now: int) -> list[tuple[int, Stay]]:
        """The shards whose parameters this turn needs, which is number `now`, and their stays."""
        return [(k, self.at(turn.device, k, now)) for k in self.needs(turn)]

    def loads(self, device: int, here: Iterable[tuple[int, Stay]], now: int) -> list[Copy]:
        """Parameters that come for this turn and those that follow it."""
        shards, modes = self.strategy.shards, self.strategy.modes
        return [
            Copy.of(shards[k], k, "P", device, "param", stay.name)
            for k, stay in here
            if stay.first == now and modes[k].params != "resident"
        ]

    def _lasting(self) -> Iterator[tuple[int, int, Role]]:
        """All that stays from round to round: device, shard, and its parameters or its state."""
        for k, mode in enumerate(self.strategy.modes):
            home = self.strategy.homes[k]
            if mode.params == "resident":
                for device in (home, *self.strategy.users[k]):
                    yield device, k, "param"
            if mode.update == "device":
                yield home, k, "state"

    def comes(self, links: Links) -> Iterator[Copy]:
        """Copies to the devices before the first round. What changes is in the store of its home's
        node alone: a device of every other node gets it from there, and sends it on."""
        has: dict[tuple[int, int], int] = {}  # by node and shard the device that sends
        for device, k, role in self._lasting():
            shard, node = self.strategy.shards[k], links.node_of(device)
            home = self.strategy.homes[k]
            source = has.setdefault((node, k), device)
            if not shard.grad_bytes or node == links.node_of(home):
                yield Copy.of(shard, k, "P", device, role)
            else:
                source, name = home if source == device else source, f"s{k}.{role}"
                size = shard.bytes_of(role)
                yield Copy("X", source, "s", k, role, size, name, name, to=device)

    def goes(self) -> Iterator[Copy]:
        """The same back to the host after the last one, if it has changed."""
        for device, k, role in self._lasting():
            changed = self.strategy.shards[k].grad_bytes and not self.strategy.evaluates
            if changed and device == self.strategy.homes[k]:
                yield Copy.of(self.strategy.shards[k], k, "S", device, role)

    def values(self, lives: Lives) -> Iterator[Value]:
        """Parameters, and what is there all the time beside them."""
        shards = self.strategy.shards
        for (device, k), stays in self.of.items():
            for stay in stays:
                size = shards[k].param_bytes
                span = lives.step(device, stay.since), lives.step(device, stay.last)
                yield lives.value(device, stay.name, size, "param", k, *span)
        for device, k, role in self._lasting():
            if role == "state":
                last = lives.count[device]
                yield lives.value(device, f"s{k}.state", shards[k].state_bytes, role, k, 0, last)
        norms = self.strategy.costs.task.norm_bytes
        for device, last in enumerate(lives.count):
            yield lives.value(device, "norm", norms, "norm", 0, 0, last)


def _starts(turns: Sequence[Turn]) -> list[int]:
    """The first turn of every run of one shard, up or down. Additions, which take a moment, are no
    runs: what comes during one would be waited for."""
    runs = ((at, turn) for at, turn in enumerate(turns) if turn.kind != "R")
    keyed = groupby(runs, key=lambda pair: (pair[1].shard, pair[1].kind == "F"))
    return [next(group)[0] for _, group in keyed]


def _runs(places: Iterable[int]) -> list[tuple[int, int]]:
    """Places that follow each other, as the first and the last of each run."""
    runs: list[tuple[int, int]] = []
    for at in places:
        if runs and runs[-1][1] == at - 1:
            runs[-1] = runs[-1][0], at
        else:
            runs.append((at, at))
    return runs
