"""The load program over the phases of a round: what stays, what moves, what is recomputed.

Items (layers, or shards) are put into groups, and a round into two windows per group, F_g going
up and B_g coming down. Times of windows are unknown; in each of them

    window >= compute in it        window >= bytes in / h2d rate, bytes out / d2h rate
    window >= host updates in it   memory at its end <= capacity

What a group needs in window F_g comes in between its update and F_g (and holds memory until
then); what it needs again in B_g was kept, or comes in between F_g and B_g; its gradients leave
after B_g, its updates follow them, its parameters follow the updates:

    .. B_g |-- gradients out --|            windows wrap around the end of the round
           |---- updates on the host ----|
           |---- parameters in -----------| F_g .. kept, or in again .. B_g

The program at the level of layers, with parts of layers allowed, no room for anything beside what
is listed and the best rates, is a relaxation of every plan that takes all microbatches of a shard
in turn: its optimum is a lower bound on the period. The same program at the level of shards,
with whole modes and room for transients and copies in flight, makes the plan's choices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.costs import Links, ShardCost
from planner.modes import HELD, Held, Mode, holdings, settled
from planner.solver import Outcome, lp_sum, minimise, solve

_MB = 1 << 20
_MS = 1000


@dataclass(frozen=True)
class Terms:
    """What the program is about. Rates in bytes per second, the copies' own latency left out.

    room_bytes: what the device offers, less what is there in any case.
    """

    items: Sequence[ShardCost]
    microbatches: int
    h2d: int
    d2h: int
    room_bytes: int
    links: Links
    whole: bool  # shards with whole modes, the last of them without a forward of its own


@dataclass(frozen=True)
class Optimum:
    """period_us: proven bound of the program. modes: per item, where it was asked for whole."""

    period_us: int
    modes: tuple[Mode, ...]


class Phases:
    """The program while it is put together and solved; PuLP's models are mutable."""

    def __init__(self, terms: Terms, groups: int) -> None:
        self.terms = terms
        self.model = minimise("phases")
        count = len(terms.items)
        self.group = grouped(terms.items, groups)
        self.groups = self.group[-1] + 1
        self.windows = 2 * self.groups
        binary = "Binary" if terms.whole else "Continuous"
        self.held: list[dict[Held, Any]] = []
        self.saved: list[Any] = []
        self.packed: list[Any] = []
        for i, item in enumerate(terms.items):
            last = terms.whole and i == count - 1
            ways = holdings(item)
            self.held.append(
                {h: self._var(f"h{i}_{HELD.index(h)}", binary) for h in ways}
                if len(ways) > 1
                else {ways[0]: 1}
            )
            self.saved.append(0 if last else self._var(f"v{i}", binary))
            offload = item.offload_bytes and terms.links.d2d and not last
            self.packed.append(self._var(f"o{i}", binary) if offload else 0)
        self.last = self._last_shard()
        self.us = [self._var(f"t{w}") for w in range(self.windows)]
        self._rules()

    # A variable that is continuous from 0 on, or binary.
    def _var(self, name: str, kind: str = "Continuous") -> Any:
        return self.model.add_variable(name, 0, 1 if kind == "Binary" else None, cat=kind)

    def _last_shard(self) -> list[Any]:
        """How much of each item is in the last shard, which has no forward of its own."""
        count = len(self.terms.items)
        if self.terms.whole:
            return [int(i == count - 1) for i in range(count)]
        parts = [self._var(f"l{i}") for i in range(count)]
        for below, above in zip(parts, parts[1:], strict=False):
            self.model += below <= above
        self.model += parts[-1] <= 1
        return parts

    def part(self, i: int, params: str = "", update: str = "") -> Any:
        """How much of item i is held in these ways."""
        return lp_sum(
            x
            for (p, u), x in self.held[i].items()
            if (not params or p == params) and (not update or u == update)
        )

    def forward(self, group: int) -> int:
        return group

    def backward(self, group: int) -> int:
        return self.windows - 1 - group

    def members(self, group: int) -> Iterator[int]:
        return (i for i, g in enumerate(self.group) if g == group)

    def _rules(self) -> None:
        for i, item in enumerate(self.terms.items):
            self.model += self.part(i) == 1
            graphs = self.saved[i] + self.packed[i] + self.last[i]
            if not isinstance(graphs, int):
                self.model += graphs <= 1
            if self.terms.whole:
                if not isinstance(self.saved[i], int):
                    self.model += self.saved[i] + self.part(i, "streamed") <= 1
            elif len(self.held[i]) > 1:
                self.model += self.part(i, "streamed") + self.last[i] <= 1
        self.memory: list[Any] = [self._always()] * self.windows
        h2d = [self._var(f"zi{w}") for w in range(self.windows)]
        d2h = [self._var(f"zo{w}") for w in range(self.windows)]
        self.model += lp_sum(h2d) == self._free_in()
        self.model += lp_sum(d2h) == self._free_out()
        host: list[Any] = [0] * self.windows
        for g in range(self.groups):
            self._flows(g, h2d, d2h, host)
            self._graphs(g)
        if self.terms.whole:
            self._ways_round()
        for w in range(self.windows):
            self.model += self.us[w] >= self._compute(w)
            self.model += self.us[w] * (self.terms.h2d * _MS / 1e6 / _MB) >= h2d[w]
            self.model += self.us[w] * (self.terms.d2h * _MS / 1e6 / _MB) >= d2h[w]
            if not isinstance(host[w], int):
                self.model += self.us[w] >= host[w]
            extra = self._turn() if w == self.groups - 1 else 0
            self.model += self.memory[w] + extra <= self.terms.room_bytes / _MB
        self.model += lp_sum(self.us)

    def _ways_round(self) -> None:
        """From F of shard k up and down to its B, through the host, to its F in the next round."""
        above: Any = 0
        for i in range(len(self.terms.items) - 1, -1, -1):
            item, links = self.terms.items[i], self.terms.links
            above = self._name(above + self._item_us(i, up=True) + self._item_us(i, up=False), f"y{i}")
            way = links.spill_us(item.grad_bytes) + item.update_host_us
            way += links.prefetch_us(item.param_bytes)
            if item.grad_bytes:
                self.model += lp_sum(self.us) >= above + way / _MS * self.part(i, "", "host")

    def _always(self) -> Any:
        """MB that are there all round: resident parameters and state, and room for copies."""
        items = list(enumerate(self.terms.items))
        total = lp_sum(
            item.param_bytes / _MB * self.part(i, "resident")
            + item.state_bytes / _MB * self.part(i, "", "device")
            for i, item in items
        )
        return total + self._in_flight() if self.terms.whole else total

    def _in_flight(self) -> Any:
        """Two neighbours of what is streamed, and of gradients; the largest transient."""
        slots, grads, states, reserve = (self._var(name) for name in ("D", "G", "E", "R"))
        items = self.terms.items
        for i, item in enumerate(items):
            after = i + 1 < len(items)
            pairs: list[tuple[Any, str, Callable[[int], Any]]] = [
                (slots, "param_bytes", lambda k: self.part(k, "streamed")),
                (grads, "grad_bytes", lambda k: 1),
                (states, "state_bytes", lambda k: self.part(k, "", "device-streamed")),
            ]
            for room, what, part in pairs:
                need = getattr(item, what) / _MB * part(i)
                if after:
                    need += getattr(items[i + 1], what) / _MB * part(i + 1)
                self.model += room >= need
            graph = self.packed[i]
            saving = (item.backward_transient_bytes - item.graph_transient_bytes) / _MB
            self.model += reserve >= item.backward_transient_bytes / _MB - saving * graph
        return slots + grads + states + reserve

    def _free_in(self) -> Any:
        """MB that come in at any time: state updated on the device, what was packed."""
        return lp_sum(
            item.state_bytes / _MB * self.part(i, "", "device-streamed") + self._packed_mb(i)
            for i, item in enumerate(self.terms.items)
        )

    def _free_out(self) -> Any:
        return lp_sum(
            item.state_bytes / _MB * self.part(i, "", "device-streamed")
            + item.param_bytes
            / _MB
            * (self.part(i, "kept", "device-streamed") + self.part(i, "streamed", "device-streamed"))
            + self._packed_mb(i)
            for i, item in enumerate(self.terms.items)
        )

    def _packed_mb(self, i: int) -> Any:
        size = self.terms.items[i].offload_bytes or 0
        return self.terms.microbatches * size / _MB * self.packed[i]

    def _flows(self, g: int, h2d: list[Any], d2h: list[Any], host: list[Any]) -> None:
        """What a group's parameters, gradients and updates put into windows and memory."""
        members = [(i, self.terms.items[i]) for i in self.members(g)]
        moving = [(i, x) for i, x in members if len(self.held[i]) > 1]
        if not moving:
            return
        up, down, count = self.forward(g), self.backward(g), self.windows
        later = [w % count for w in range(down, count + up + 1)]  # B_g .. F_g
        mid = list(range(up, down + 1))  # F_g .. B_g
        loads = {w: self._var(f"i{g}_{w}") for w in later}
        again = {w: self._var(f"j{g}_{w}") for w in mid}
        spills = {w: self._var(f"s{g}_{w}") for w in later}
        updates = {w: self._var(f"u{g}_{w}") for w in later}
        mb = [(i, x.param_bytes / _MB) for i, x in moving]
        kept = lp_sum(size * self.part(i, "kept") for i, size in mb)
        evicted = lp_sum(
            size
            * (self.part(i, "kept", "device-streamed") + self.part(i, "streamed", "device-streamed"))
            for i, size in mb
        )
        grads = lp_sum(x.grad_bytes / _MB * self.part(i, "", "host") for i, x in moving)
        # What never changes may come in without an update.
        frozen = lp_sum(
            size * (self.part(i, "kept") + self.part(i, "streamed"))
            for (i, x), (_, size) in zip(moving, mb, strict=True)
            if not x.grad_bytes
        )
        self.model += lp_sum(loads.values()) == lp_sum(
            size * (self.part(i, "kept") + self.part(i, "streamed")) for i, size in mb
        )
        self.model += lp_sum(again.values()) == lp_sum(
            size * self.part(i, "streamed") for i, size in mb
        )
        self.model += lp_sum(spills.values()) == grads
        self.model += lp_sum(updates.values()) == lp_sum(
            x.update_host_us / _MS * self.part(i, "", "host") for i, x in moving
        )
        trained = [x for _, x in moving if x.grad_bytes]
        per_grad = max((x.update_host_us / _MS / (x.grad_bytes / _MB) for x in trained), default=0)
        slow = all(x.update_host_us for x in trained)
        per_update = max(
            (x.param_bytes / _MB / (x.update_host_us / _MS) for x in trained if slow), default=0
        )
        per_out = max((x.param_bytes / x.grad_bytes for x in trained), default=0)
        sums: list[Any] = [0, 0, 0]
        for w in later:
            sums = [sums[0] + spills[w], sums[1] + updates[w], sums[2] + loads[w]]
            h2d[w] += loads[w]
            d2h[w] += spills[w]
            host[w] = host[w] + updates[w]
            if trained and w != up:
                out, done, back = (self._name(s, f"c{g}_{w}_{n}") for n, s in enumerate(sums))
                sums = [out, done, back]
                self.model += done <= out * per_grad
                if slow:
                    self.model += back <= done * per_update + evicted + frozen
                self.model += back <= out * per_out + evicted + frozen
                self.memory[w] = self.memory[w] + back + grads - out
        stock: Any = kept
        for w in mid:
            h2d[w] += again[w]
            stock = stock + again[w]
            if w != down:
                self.memory[w] = self.memory[w] + stock

    def _name(self, value: Any, name: str) -> Any:
        """A variable equal to an expression, so that rows stay short."""
        variable = self._var(name)
        self.model += variable == value
        return variable

    def _graphs(self, g: int) -> None:
        """Graphs and boundaries live from a group's forward to its backward."""
        sizes = []
        for i in self.members(g):
            item = self.terms.items[i]
            sizes.append(self.terms.microbatches * item.saved_bytes / _MB * self.saved[i])
            if self.terms.whole:
                sizes.append(self.terms.microbatches * item.in_bytes / _MB)
        total = lp_sum(sizes)
        for w in range(self.forward(g), self.backward(g)):
            self.memory[w] = self.memory[w] + total

    def _turn(self) -> Any:
        """The last shard's gradients and one microbatch's graph, all at once."""
        if self.terms.whole:
            return 0  # its transient counts as such
        return lp_sum(
            (item.grad_bytes + item.saved_bytes) / _MB * self.last[i]
            for i, item in enumerate(self.terms.items)
        )

    def _compute(self, w: int) -> Any:
        """ms of compute in a window."""
        up = w < self.groups
        members = self.members(w if up else self.windows - 1 - w)
        return lp_sum(self._item_us(i, up=up) for i in members)

    def _item_us(self, i: int, *, up: bool) -> Any:
        """ms of compute that item i takes in its window going up, or coming down."""
        item, count = self.terms.items[i], self.terms.microbatches / _MS
        graph = self.saved[i] + self.packed[i]
        if up:
            pack = self.terms.links.pack_us(item.offload_bytes or 0)
            return (
                count * item.forward_us * (1 - self.last[i] - graph)
                + count * item.graph_forward_us * graph
                + count * pack * self.packed[i]
            )
        us = count * item.backward_us * (1 - graph) + count * item.graph_backward_us * graph
        if item.grad_bytes:
            on_device = self.part(i, "", "device") + self.part(i, "", "device-streamed")
            us = us + item.update_device_us / _MS * on_device
        return us

    def modes(self) -> tuple[Mode, ...]:
        """What the solution says of every shard."""
        count = len(self.terms.items)
        found = []
        for i, item in enumerate(self.terms.items):
            params, update = max(self.held[i], key=lambda h: _value(self.held[i][h]))
            act = "saved" if _value(self.saved[i]) > 0.5 else "recompute"
            act = "offload" if _value(self.packed[i]) > 0.5 else act
            mode = Mode(params, update, act)  # type: ignore[arg-type]
            found.append(settled(item, mode, first=not i, last=i == count - 1))
        return tuple(found)


def _value(x: Any) -> float:
    return float(x if isinstance(x, int | float) else (x.value() or 0.0))


def grouped(items: Sequence[ShardCost], groups: int) -> list[int]:
    """The group of every item: about equal shares of time, in order."""
    weights = [item.forward_us + item.backward_us + item.param_bytes / 1e4 for item in items]
    total, done, out = sum(weights), 0.0, []
    for weight in weights:
        out.append(min(groups - 1, int(groups * (done + weight / 2) / max(total, 1e-9))))
        done += weight
    names = sorted(set(out))
    return [names.index(g) for g in out]


def optimum(terms: Terms, groups: int, *, seconds: float, seed: int, gap: float) -> Optimum | None:
    """Solve the program; None when it has no solution or none was found."""
    phases = Phases(terms, groups)
    outcome: Outcome = solve(phases.model, seconds=seconds, seed=seed, nodes=200, gap=gap)
    if not outcome.found or outcome.bound is None:
        return None
    period = math.floor(max(0.0, outcome.bound) * _MS * (1 - 1e-6) - 1e-3)
    return Optimum(max(0, period), phases.modes() if terms.whole else ())
