"""Parameters and state on the devices: how long they stay, in turns of each compute stream.

turns      F0 F0 F0 F1 F1 F1 | B2 B2 B2 B1 B1 B1 B0 B0 B0 U0
kept       s0 ................................ s0          loaded once
streamed   s0 .. s0                      s0 ... s0         loaded for each run of its turns
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from planner.lowering.lives import Lives
from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import Turn
from planner.rounds import Copy, Send
from planner.shards import Into, Links, Out, ShardCost, Strategy, Value
from plans.schema import Role


class Stay(NamedTuple):
    """Parameters of a shard from turn `first` to turn `last` of a device, loaded from turn `since`
    on; name: of the value."""

    name: str
    first: int
    last: int
    since: int


class Stays:
    """The stays of all shards on all devices. count: the turns of each device."""

    def __init__(self, strategy: PipelineStrategy, links: Links, turns: Sequence[Turn]) -> None:
        self.strategy, self.links = strategy, links
        own: list[list[Turn]] = [[] for _ in range(strategy.devices)]
        for turn in turns:
            if computes(strategy, turn):
                own[turn.device].append(turn)
        self.turns = own
        self.count = [len(mine) for mine in own]
        self.starts = [_starts(mine) for mine in own]
        self.of: dict[tuple[int, int], list[Stay]] = {}
        self.late: dict[int, int] = {}  # turns of updates that parameters wait for
        for device, mine in enumerate(own):
            used: dict[int, list[int]] = {}
            for at, turn in enumerate(mine):
                late = isinstance(strategy, Strategy) and strategy.costs.noted and turn.kind == "U"
                for k in self.needs(turn):
                    if late and self.strategy.modes[k].params == "streamed":
                        self.late[k] = at
                    else:
                        used.setdefault(k, []).append(at)
            for k, places in used.items():
                self.of[device, k] = list(self._stays(device, k, places))

    def needs(self, turn: Turn) -> Sequence[int]:
        """The shards whose parameters a turn needs: its own, and the owner of tied ones."""
        if turn.kind in "RN":
            return ()
        if turn.kind == "block":
            return range(turn.shard, self.strategy.last + 1)
        tied = turn.shard in self.strategy.holders and turn.kind != "U"
        return (turn.shard, self.strategy.owner or 0) if tied else (turn.shard,)

    def _stays(self, device: int, k: int, used: list[int]) -> Iterator[Stay]:
        mode, name = self.strategy.modes[k], f"s{k}.param"
        if mode.params == "resident":
            yield Stay(name, 0, self.count[device], 0)
            return
        runs = [(used[0], used[-1])] if mode.params == "kept" else _runs(used)
        runs[-1] = runs[-1][0], self.late.get(k, runs[-1][1])
        for number, (first, last) in enumerate(runs):
            own = f"{name}.{number}" if number else name
            yield Stay(own, first, last, self.before(device, first))

    def before(self, device: int, turn: int) -> int:
        """The first turn of the run before the one with this turn: what comes for it may come
        then."""
        if isinstance(self.strategy, Strategy):
            return turn
        earlier = [start for start in self.starts[device] if start <= turn][:-1]
        return earlier[-1] if earlier else -1

    def at(self, device: int, k: int, turn: int) -> Stay:
        """The stay of a shard at a turn."""
        return next(stay for stay in self.of[device, k] if turn <= stay.last)

    def loads(self, turn: Turn, now: int) -> list[Copy]:
        """Parameters that come for this turn, which is number `now`, and those that follow it."""
        moving = [k for k in self.needs(turn) if self.strategy.modes[k].params != "resident"]
        stays = [(k, self.at(turn.device, k, now)) for k in moving]
        shards = self.strategy.shards
        return [
            copied(shards[k], k, "P", "param", stay.name) for k, stay in stays if stay.first == now
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

    def comes(self) -> Iterator[tuple[int, Copy | Send]]:
        """Copies to the devices before the first round. What changes is in the store of its home's
        node alone: a device of every other node gets it from there, and sends it on."""
        has: dict[tuple[int, int], int] = {}  # by node and shard the device that sends
        for device, k, role in self._lasting():
            shard, node = self.strategy.shards[k], self.links.node_of(device)
            home = self.strategy.homes[k]
            source = has.setdefault((node, k), device)
            if not shard.grad_bytes or node == self.links.node_of(home):
                yield device, copied(shard, k, "P", role)
            else:
                source, name = home if source == device else source, f"s{k}.{role}"
                size = shard.bytes_of(role)
                yield source, Send(source, "s", k, role, size, name, device, name)

    def goes(self) -> Iterator[tuple[int, Copy]]:
        """The same back to the host after the last one, if it has changed."""
        for device, k, role in self._lasting():
            if device == self.strategy.homes[k] and self.strategy.shards[k].grad_bytes:
                yield device, copied(self.strategy.shards[k], k, "S", role)

    def moves(self, lives: Lives) -> None:
        """Note when parameters, state and gradients of one device come and go."""
        s, count = self.strategy, lives.count[0]
        turns = self.turns[0]
        ends, firsts, starts, ups = dict[int, int](), dict[int, int](), dict[int, int](), dict[int, int]()
        for turn in turns:
            for k in range(turn.shard, s.last + 1) if turn.kind == "block" else (turn.shard,):
                firsts.setdefault(k, turn.step)
                if turn.kind == "F":
                    ups[k] = turn.step
                if turn.kind in ("B", "block"):
                    starts.setdefault(k, turn.step)
                    ends[k] = turn.step
        self.ends, sweeps = ends, max(ends.values()) + 1
        updates = ends | {turn.shard: turn.step for turn in turns if turn.kind == "U"}
        for k, (shard, mode) in enumerate(zip(s.shards, s.modes, strict=True)):
            free = updates[k] + 1 - count
            if s.costs.noted and mode.update == "host" and shard.grad_bytes:
                free = sweeps - count
            streams = mode.update == "device-streamed" and shard.grad_bytes > 0
            state = f"s{k}.state"
            if mode.spilled:
                size, made, back = s.costs.microbatches * shard.in_bytes, ups[k - 1], ends[k]
                lives.out[0, f"x{k}"] = Out(made, back, size, steady=True)
                lives.into[0, f"x{k}b"] = Into(back, size, made + 2, f"x{k}", steady=True)
            if mode.activations == "offload":
                size = s.costs.microbatches * (shard.offload_bytes or 0)
                lives.out[0, f"a{k}"] = Out(ups[k], ends[k], size, steady=True)
                lives.into[0, f"a{k}b"] = Into(ends[k], size, ups[k] + 1, f"a{k}", steady=True)
            if mode.update == "device-streamed":
                lives.into[0, state] = Into(updates[k], shard.state_bytes, free, state)
                if streams:
                    lives.out[0, state] = Out(updates[k], updates[k] + count, shard.state_bytes)
            if mode.update == "host":
                again = firsts[k] + count
                lives.out[0, f"s{k}.grad"] = Out(ends[k], again, shard.grad_bytes, shard.update_host_us)
            if mode.params == "resident":
                continue
            stays = self.of[0, k]
            after = f"s{k}.grad"
            if streams:
                after = state
                if not shard.cast:
                    after = stays[-1].name
                    lives.out[0, after] = Out(updates[k], firsts[k] + count, shard.param_bytes)
            for stay in stays:
                need = turns[stay.first].step
                into = Into(need, shard.param_bytes, free, after, cast=shard.cast)
                lives.into[0, stay.name] = into
                free, after = need + 1, ""

    def values(self, lives: Lives) -> Iterator[Value]:
        """Parameters, and what is there all the time beside them."""
        shards = self.strategy.shards
        for (device, k), stays in self.of.items():
            for stay in stays:
                size = shards[k].param_bytes
                span = lives.step(device, stay.since) if stay.since >= 0 else stay.since, lives.step(device, stay.last)
                yield lives.value(device, stay.name, size, "param", k, *span)
        for device, k, role in self._lasting():
            if role == "state":
                last = lives.count[device]
                yield lives.value(device, f"s{k}.state", shards[k].state_bytes, role, k, 0, last)
        for device, last in enumerate(lives.count):
            yield lives.value(device, "norm", self.strategy.costs.task.norm_bytes, "norm", 0, 0, last)


def computes(strategy: PipelineStrategy, turn: Turn) -> bool:
    """True for a turn of its device's compute stream; updates on the host are none."""
    return turn.kind != "U" or strategy.modes[turn.shard].update != "host"


def copied(shard: ShardCost, k: int, kind: Literal["P", "S"], role: Role, name: str = "") -> Copy:
    """A copy of what a shard is trained with. name: of the value, if it has one of its own."""
    host = f"s{k}.{role}"
    return Copy(kind, "s", k, role, shard.bytes_of(role), name or host, host)


def _starts(turns: Sequence[Turn]) -> list[int]:
    """The first turn of every run of one shard, up or down."""
    keyed = groupby(enumerate(turns), key=lambda pair: (pair[1].shard, pair[1].kind == "F"))
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
