"""The load program over the phases of a round: what stays, what moves, what is recomputed.

Items (layers, or some of them together) are put into groups, and a round into two windows per
group, F_g going up and B_g coming down, and one for the turn between, in which a block of items at
the top computes all but the last backward, one microbatch's graphs at a time. Times of windows
are unknown; in each of them

    window >= compute in it        window >= bytes in / h2d rate, bytes out / d2h rate
    window >= host updates in it   memory at its end <= capacity

What a group needs in window F_g comes in between its update and F_g (and holds memory until
then); what it needs again in B_g was kept, or comes in between F_g and B_g; its gradients leave
after B_g, its updates follow them, its parameters follow the updates:

    .. B_g |-- gradients out --|            windows wrap around the end of the round
           |---- updates on the host ----|
           |---- parameters in -----------| F_g .. kept, or in again .. B_g

With parts of layers allowed, no room for anything beside what is listed and the best rates, this
is a relaxation of every plan that takes all microbatches of a shard in turn: its optimum is a
lower bound on the period. With room for copies in flight its solution is what plans are made of:
`rounding` turns parts into whole shards.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.costs import Links, ShardCost
from planner.modes import HELD, Held, holdings
from planner.solver import Status, lp_sum, minimise, solve

_MB = 1 << 20
_MS = 1000


@dataclass(frozen=True)
class Terms:
    """What the program is about. Rates in bytes per second, the copies' own latency left out.

    room_bytes: what the device offers, less what is there in any case.
    shards: items in a shard, when a plan is looked for and not a bound: room is then left for
    copies in flight and for boundaries, and graphs keep addresses.
    offload: whether activations may be packed. A plan then has buffers for it, however few shards
    do it.
    """

    items: Sequence[ShardCost]
    microbatches: int
    h2d: int
    d2h: int
    room_bytes: int
    links: Links
    shards: float = 0.0
    offload: bool = True

    @property
    def plan(self) -> bool:
        return self.shards > 0


@dataclass(frozen=True)
class Weights:
    """How much of an item is held in each way, keeps its graph, packs it, spills its boundary, is
    in the block at the top."""

    held: dict[Held, float]
    saved: float
    packed: float
    spilled: float
    last: float


@dataclass(frozen=True)
class Optimum:
    """period_us: what no solution of the program is below. weights: of the best, per item."""

    period_us: int
    weights: tuple[Weights, ...]


class Phases:
    """The program while it is put together and solved; PuLP's models are mutable."""

    def __init__(self, terms: Terms, groups: int) -> None:
        self.terms = terms
        self.model = minimise("phases")
        self.group = grouped(terms.items, groups)
        self.groups = self.group[-1] + 1
        self.windows = 2 * self.groups + 1
        self.held: list[dict[Held, Any]] = []
        self.saved: list[Any] = []
        self.packed: list[Any] = []
        self.spilled: list[Any] = []
        for i, item in enumerate(terms.items):
            ways = holdings(item)
            self.held.append(
                {h: self._var(f"h{i}_{HELD.index(h)}") for h in ways}
                if len(ways) > 1
                else {ways[0]: 1}
            )
            self.saved.append(self._var(f"v{i}"))
            offload = item.offload_bytes and terms.links.d2d and terms.offload
            self.packed.append(self._var(f"o{i}") if offload else 0)
            spills = terms.plan and item.in_bytes and i
            self.spilled.append(self._var(f"x{i}") if spills else 0)
        self.last = self._last_shard()
        self.us = [self._var(f"t{w}") for w in range(self.windows)]
        self._rules()

    def _var(self, name: str) -> Any:
        """A variable from 0 on."""
        return self.model.add_variable(name, 0)

    def _last_shard(self) -> list[Any]:
        """How much of each item is in the block at the top (or in a large last shard)."""
        parts = [self._var(f"l{i}") for i in range(len(self.terms.items))]
        for below, above in pairwise(parts):
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
        for i in range(len(self.terms.items)):
            if len(self.held[i]) > 1:
                self.model += self.part(i) == 1
            self.model += self.saved[i] + self.packed[i] + self.last[i] <= 1
            if not isinstance(self.spilled[i], int):
                self.model += self.saved[i] + self.spilled[i] + self.last[i] <= 1
            if len(self.held[i]) > 1:
                graph = self.saved[i] if self.terms.plan else 0
                self.model += self.part(i, "streamed") + self.last[i] + graph <= 1
        self.slab: list[Any] = [self._always()] * self.windows
        self.reserve: list[Any] = [0] * self.windows
        h2d: list[Any] = [0] * self.windows
        d2h: list[Any] = [0] * self.windows
        host: list[Any] = [0] * self.windows
        for g in range(self.groups):
            self._flows(g, h2d, d2h, host)
            self._states(g, h2d, d2h)
            self._aside(g, h2d, d2h)
            self._graphs(g)
        if self.terms.plan:
            self._ways_round()
        for w in range(self.windows):
            self.model += self.us[w] >= self._compute(w)
            self.model += self.us[w] * (self.terms.h2d * _MS / 1e6 / _MB) >= h2d[w]
            self.model += self.us[w] * (self.terms.d2h * _MS / 1e6 / _MB) >= d2h[w]
            if not isinstance(host[w], int):
                self.model += self.us[w] >= host[w]
        self._limits()
        self.model += lp_sum(self.us)

    def _ways_round(self) -> None:
        """From F of shard k up and down to its B, through the host, to its F in the next round."""
        above: Any = 0
        for i in range(len(self.terms.items) - 1, -1, -1):
            item, links = self.terms.items[i], self.terms.links
            above = self._name(
                above + self._up_us(i) + self._turn_us(i) + self._down_us(i), f"y{i}"
            )
            way = links.spill_us(item.grad_bytes) + item.update_host_us
            way += links.prefetch_us(item.param_bytes)
            if item.grad_bytes:
                self.model += lp_sum(self.us) >= above + way / _MS * self.part(i, "", "host")

    def _always(self) -> Any:
        """MB that are there all round: resident parameters and state, buffers for packing."""
        items = list(enumerate(self.terms.items))
        staging = 0.0
        if self.terms.plan and self.terms.offload:  # for two microbatches of two shards
            largest = max(item.offload_bytes or 0 for item in self.terms.items) / _MB
            staging = 2 * min(2, self.terms.microbatches) * largest * max(1.0, self.terms.shards)
        return staging + lp_sum(
            item.param_bytes / _MB * self.part(i, "resident")
            + item.state_bytes / _MB * self.part(i, "", "device")
            for i, item in items
        )

    def _at_work(self, w: int) -> Any:
        """MB of the item at work when the window ends: its gradient, and its parameters unless
        they are counted anyway. A plan has copies in flight beside them."""
        up = w < self.groups
        members = list(self.members(w if up else self.windows - 1 - w))
        i = members[-1] if up else members[0]
        item, copies = self.terms.items[i], max(1.0, 2 * self.terms.shards)
        held = copies * item.param_bytes / _MB * self.part(i, "streamed")
        # A spilled boundary is there while it is made, used and copied.
        held += 3 * self.terms.microbatches * item.in_bytes / _MB * self.spilled[i]
        if up:
            return held
        held += item.param_bytes / _MB * self.part(i, "kept")
        if not self.terms.plan:
            return held + item.grad_bytes / _MB
        held += copies * item.state_bytes / _MB * self.part(i, "", "device-streamed")
        return held + copies * item.grad_bytes / _MB * (1 - self.last[i])

    def _states(self, g: int, h2d: list[Any], d2h: list[Any]) -> None:
        """State updated on the device comes in until B_g and leaves from then on, and parameters
        with it; in a plan not long before and after."""
        items = [(i, self.terms.items[i]) for i in self.members(g)]
        states = lp_sum(x.state_bytes / _MB * self.part(i, "", "device-streamed") for i, x in items)
        evicted = lp_sum(
            x.param_bytes
            / _MB
            * (
                self.part(i, "kept", "device-streamed")
                + self.part(i, "streamed", "device-streamed")
            )
            for i, x in items
        )
        reach = 3 if self.terms.plan else self.windows - 1
        down, count = self.backward(g), self.windows
        before = [(down - n) % count for n in range(reach, -1, -1)]
        after = [(down + n) % count for n in range(reach + 1)]
        into, out = self._spread(before, h2d, f"zi{g}"), self._spread(after, d2h, f"zo{g}")
        for there, w in zip(into, before, strict=True):
            if w != down and self.terms.plan:
                self.slab[w] = self.slab[w] + there
        for gone, w in zip(out, after, strict=True):
            if self.terms.plan:
                self.slab[w] = self.slab[w] + states + evicted - gone
        self.model += into[-1] == states
        self.model += out[-1] == states + evicted

    def _spread(self, windows: Sequence[int], link: list[Any], name: str) -> list[Any]:
        """A flow over a link in these windows: what has crossed it by the end of each."""
        sums: list[Any] = []
        for w in windows:
            part = self._var(f"{name}_{w}")
            link[w] += part
            sums.append(self._name((sums[-1] if sums else 0) + part, f"{name}c_{w}"))
        return sums

    def _aside(self, g: int, h2d: list[Any], d2h: list[Any]) -> None:
        """What is put aside on the host from F_g to B_g: packed activations, boundaries.

        A plan moves it at once, through buffers for two microbatches of two shards.
        """
        up, down, count = self.forward(g), self.backward(g), self.terms.microbatches
        sizes = []
        for i in self.members(g):
            item = self.terms.items[i]
            sizes.append(count * (item.offload_bytes or 0) / _MB * self.packed[i])
            if self.terms.plan:
                size = count * item.in_bytes / self.terms.shards / _MB
                sizes.append(size * self.spilled[i])
        total = lp_sum(sizes)
        windows = list(range(up, down + 1))
        near = max(1, min(2, len(windows) // 2)) if self.terms.plan else len(windows)
        gone: Any = 0
        back: Any = 0
        for w in windows:
            if w < up + near:
                out = self._var(f"p{g}_{w}")
                d2h[w] += out
                gone = self._name(gone + out, f"pc{g}_{w}")
            if w > down - near:
                into = self._var(f"q{g}_{w}")
                h2d[w] += into
                back = self._name(back + into, f"qc{g}_{w}")
            if not self.terms.plan:
                self.model += back <= gone
                if w != down:
                    self.slab[w] = self.slab[w] + total - gone + back
        self.model += gone == total
        self.model += back == total

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
            * (
                self.part(i, "kept", "device-streamed")
                + self.part(i, "streamed", "device-streamed")
            )
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
                self.slab[w] = self.slab[w] + back + grads - out
        stock: Any = kept
        for w in mid:
            h2d[w] += again[w]
            stock = stock + again[w]
            if w != down:
                self.slab[w] = self.slab[w] + stock

    def _name(self, value: Any, name: str) -> Any:
        """A variable equal to an expression, so that rows stay short."""
        variable = self._var(name)
        self.model += variable == value
        return variable

    def _graphs(self, g: int) -> None:
        """Graphs and boundaries live from a group's forward to its backward."""
        graphs, boundaries = [], []
        for i in self.members(g):
            item = self.terms.items[i]
            graphs.append(self.terms.microbatches * item.saved_bytes / _MB * self.saved[i])
            if self.terms.plan:
                boundary = self.terms.microbatches * item.in_bytes / _MB / self.terms.shards
                boundaries.append(boundary * (1 - self.last[i] - self.spilled[i]))
        alive, held = lp_sum(graphs), lp_sum(boundaries)
        for w in range(self.forward(g), self.backward(g)):
            self.reserve[w] = self.reserve[w] + alive
            self.slab[w] = self.slab[w] + held

    def _limits(self) -> None:
        """Slab and reserve are parts of the device's memory that do not change during a round."""
        slab, reserve = self._var("slab"), self._var("reserve")
        self.model += slab + reserve <= self.terms.room_bytes / _MB
        below: Any = 0
        for i, item in enumerate(self.terms.items):
            # When an item's backward begins, the graphs of all items below it are alive.
            least = min(item.backward_transient_bytes, item.graph_transient_bytes)
            self.model += below + least / _MB <= reserve
            graphs = self.terms.microbatches * self.saved[i] + self.last[i]
            below = self._name(below + item.saved_bytes / _MB * graphs, f"b{i}")
        for w in range(self.windows):
            held = self._turn() if w == self.groups else self._at_work(w)
            self.model += self.reserve[w] <= reserve
            self.model += self.slab[w] + held <= slab

    def _turn(self) -> Any:
        """MB of the block's gradients, all at once."""
        return lp_sum(
            item.grad_bytes / _MB * self.last[i] for i, item in enumerate(self.terms.items)
        )

    def _compute(self, w: int) -> Any:
        """ms of compute in a window."""
        if w == self.groups:
            return lp_sum(self._turn_us(i) for i in range(len(self.terms.items)))
        up = w < self.groups
        members = self.members(w if up else self.windows - 1 - w)
        return lp_sum(self._up_us(i) if up else self._down_us(i) for i in members)

    def _up_us(self, i: int) -> Any:
        """ms of forward of an item, if it is not in the block."""
        item, count = self.terms.items[i], self.terms.microbatches / _MS
        graph = self.saved[i] + self.packed[i]
        return (
            count * item.forward_us * (1 - self.last[i] - graph)
            + count * item.graph_forward_us * graph
            + count * self.terms.links.pack_us(item.offload_bytes or 0) * self.packed[i]
        )

    def _turn_us(self, i: int) -> Any:
        """ms of what the block computes before its last backward."""
        item, count = self.terms.items[i], self.terms.microbatches
        whole = count * item.backward_us - item.graph_backward_us
        return whole / _MS * self.last[i]

    def _down_us(self, i: int) -> Any:
        """ms of an item's backward, in the block the last one, and of an update on the device."""
        item, count = self.terms.items[i], self.terms.microbatches / _MS
        graph = self.saved[i] + self.packed[i]
        us = count * item.backward_us * (1 - graph - self.last[i])
        us += count * item.graph_backward_us * graph + item.graph_backward_us / _MS * self.last[i]
        if item.grad_bytes:
            on_device = self.part(i, "", "device") + self.part(i, "", "device-streamed")
            us += item.update_device_us / _MS * on_device
        return us

    def weights(self) -> tuple[Weights, ...]:
        """What the solution says of every item."""
        return tuple(
            Weights(
                {held: _value(x) for held, x in self.held[i].items()},
                _value(self.saved[i]),
                _value(self.packed[i]),
                _value(self.spilled[i]),
                _value(self.last[i]),
            )
            for i in range(len(self.terms.items))
        )


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


def optimum(terms: Terms, groups: int, *, seconds: float, seed: int) -> Optimum | None:
    """Solve the program; None when it has no solution. Without an answer in time nothing is known:
    a period of 0, and no weights."""
    phases = Phases(terms, groups)
    outcome = solve(phases.model, seconds=seconds, seed=seed)
    if outcome.status is Status.INFEASIBLE:
        return None
    if not outcome.found or outcome.bound is None:
        return Optimum(0, ())
    period = math.floor(max(0.0, outcome.bound) * _MS * (1 - 1e-6) - 1e-3)
    return Optimum(max(0, period), phases.weights())
