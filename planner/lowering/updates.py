"""R, N and U as visits: gradients of replicas are added at a shard's home, norms of all gradients
are noted, and the home, or the host, updates.

    replica    B ─ grad ─ X ─▶┐                     ┌▶ param
    home       B ─ grad ──────┴ R ─ N ─ U ─ param ─ X

Of several replicas each adds what it gets to its own before that goes on, as `trees` says.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from planner.lowering.lives import Item, Lives
from planner.lowering.strategy import PipelineStrategy
from planner.rounds import Copy, Turn, Visit
from planner.shards import Strategy
from plans.schema import Role

_HOST = -1  # of the first node; others are below


class Updates:
    """The updates of a round; lives only while their visits are made. before: of a device and a
    turn, the turn from which on what comes for it may come."""

    def __init__(
        self,
        strategy: PipelineStrategy | Strategy,
        lives: Lives,
        every: Sequence[Turn],
        before: Callable[[int, int], int],
        node: int,
    ) -> None:
        self.strategy, self.shards, self.node = strategy, strategy.shards, node
        self.lives, self.before = lives, before
        self.updated = {turn.shard: turn.step for turn in every if turn.kind == "U"}
        self.ready = set[int]()  # shards whose state comes before their update
        self.summed = defaultdict[tuple[int, int], list[int]](list)  # see `_add`
        self.norms: int | None = None  # the device that noted the last ones
        self.known: set[int] = set()  # it and those that got them from there, and hosts

    def visit(self, turn: Turn, param: str, loads: Sequence[Copy]) -> Visit:
        """A turn of one of these kinds; an update on the device finds parameters there."""
        if turn.kind == "R":
            return self._add(turn)
        if turn.kind == "N":
            return self._note(turn)
        on_host = self.strategy.modes[turn.shard].update == "host"
        return self._on_host(turn) if on_host else self._on_device(turn, param, loads)

    def grad(self, device: int, k: int, after: int = 0) -> str:
        """The gradients of a shard that a device makes, in use, and so many turns longer."""
        now = self.lives.now[device]
        size = self.shards[k].grad_bytes
        return self.lives.use(device, f"s{k}.grad", size, "grad", k, now, now + after)

    def state(self, turn: Turn) -> list[Copy]:
        """The state of a shard comes before the first backward of the step in which its update
        is."""
        k, lives = turn.shard, self.lives
        first = lives.now[turn.device] == lives.begin(turn.device)
        if not first or turn.step != self.updated.get(k) or not self.shards[k].state_bytes:
            return []
        self.ready.add(k)
        return [Copy.of(self.shards[k], k, "P", turn.device, "state")]

    def _add(self, turn: Turn) -> Visit:
        """R: the sum of another device comes while the pass before is made. Two of a shard are on a
        device at a time: one may come when the one before the last is added."""
        device, _, k, n, *_ = turn
        source, size = self.strategy.added[k][n].other, self.shards[k].grad_bytes
        other, ends = Item(f"o{k}", k, "grad", size), self.summed[device, k]
        there = self.lives.take(device, other, n, max([self._early(device), *ends[-2:-1]]))
        ends.append(self.lives.now[device] + 1)
        grad = self.grad(source, k, after=1)
        send = Copy("X", source, "s", k, "grad", size, grad, there, to=device)
        self.lives.give(device, other, n)
        at: dict[Role, str] = {"grad": self.grad(device, k), "other": there}
        return Visit(turn, at, [send])

    def _note(self, turn: Turn) -> Visit:
        """N: behind the norms of the shards before, wherever those are."""
        home, _, k, *_ = turn
        brings = self._normed(home)
        self.norms, self.known = home, {home}
        on_host = self.strategy.modes[k].update == "host"
        grad = self.grad(home, k, after=on_host and not self.strategy.stretches)
        takes = [Copy.of(self.shards[k], k, "S", home, "grad", grad)] if on_host else []
        at: dict[Role, str] = {"grad": grad, "norm": "norm"}
        return Visit(turn, at, brings, takes)

    def _on_host(self, turn: Turn) -> Visit:
        """U on the host, of gradients that go there, or have gone with their norms."""
        home, _, k, *_ = turn
        brings = self._hosted(home)
        if not self.strategy.costs.noted:
            grad = self.grad(home, k, after=-1 if self.strategy.stretches else 1)
            brings.append(Copy.of(self.shards[k], k, "S", home, "grad", grad))
        return Visit(turn, {}, brings)

    def _on_device(self, turn: Turn, param: str, loads: Sequence[Copy]) -> Visit:
        """U on the device; others get the new parameters from there, or from the host."""
        home, _, k, *_ = turn
        shard, mode, now = self.shards[k], self.strategy.modes[k], self.lives.now[home]
        at: dict[Role, str] = {
            "grad": self.grad(home, k),
            "param": param,
            "state": f"s{k}.state",
            "norm": "norm",
        }
        brings = [*loads, *self._normed(home)]
        takes = list[Copy]()
        if mode.update == "device-streamed" and shard.state_bytes:
            around = 0 if self.strategy.tight else 1
            since = self._early(home) if self.strategy.added[k] else now - around
            self.lives.use(home, at["state"], shard.state_bytes, "state", k, since, now + around)
            if k not in self.ready:
                brings.append(Copy.of(shard, k, "P", home, "state"))
        if mode.params == "resident":
            size, name = shard.param_bytes, at["param"]
            for device, user in reversed(self.strategy.sent[k]):
                takes.append(Copy("X", device, "s", k, "param", size, name, name, to=user))
        else:
            takes.append(Copy.of(shard, k, "S", home, "param", at["param"]))
        if mode.update == "device-streamed" and shard.state_bytes:
            # Behind the parameters, which are wanted sooner; before them, where modes are chosen
            # by a program that counts on it (`pipelines.delays`).
            place = len(takes) if self.strategy.stretches else 0
            takes.insert(place, Copy.of(shard, k, "S", home, "state"))
        return Visit(turn, at, brings, takes)

    def _early(self, device: int) -> int:
        """The turn from which on what a turn of replicas' gradients needs may come to a device."""
        now = self.lives.now[device]
        return now if self.strategy.tight else max(0, self.before(device, now))

    def _normed(self, device: int) -> list[Copy]:
        """The norms noted so far come to a device that does not have them."""
        if self.norms is None or device in self.known:
            return []
        self.known.add(device)
        size = self.strategy.costs.task.norm_bytes
        return [Copy("X", self.norms, "norm", 0, "norm", size, "norm", "norm", to=device)]

    def _hosted(self, device: int) -> list[Copy]:
        """Norms come to a node's host once, by way of its device that needs them there first."""
        host = _HOST - device // self.node
        if self.norms is None or host in self.known:
            return []
        comes = self._normed(device)
        self.known.add(host)
        size = self.strategy.costs.task.norm_bytes
        return [*comes, Copy("S", device, "norm", 0, "norm", size, "norm", "norm")]
