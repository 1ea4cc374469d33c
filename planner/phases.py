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
from planner.flows import MB, MS, aside, flows, states
from planner.modes import HELD, Held, holdings
from planner.solver import Status, lp_sum, minimise, solve


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
                {h: self.var(f"h{i}_{HELD.index(h)}") for h in ways}
                if len(ways) > 1
                else {ways[0]: 1}
            )
            self.saved.append(self.var(f"v{i}"))
            offload = item.offload_bytes and terms.links.d2d and terms.offload
            self.packed.append(self.var(f"o{i}") if offload else 0)
            spills = terms.plan and item.in_bytes and i
            self.spilled.append(self.var(f"x{i}") if spills else 0)
        self.last = self._last_shard()
        self.us = [self.var(f"t{w}") for w in range(self.windows)]
        self._rules()

    def var(self, name: str) -> Any:
        """A variable from 0 on."""
        return self.model.add_variable(name, 0)

    def _last_shard(self) -> list[Any]:
        """How much of each item is in the block at the top (or in a large last shard)."""
        parts = [self.var(f"l{i}") for i in range(len(self.terms.items))]
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
            flows(self, g, h2d, d2h, host)
            states(self, g, h2d, d2h)
            aside(self, g, h2d, d2h)
            self._graphs(g)
        if self.terms.plan:
            self._ways_round()
        for w in range(self.windows):
            self.model += self.us[w] >= self._compute(w)
            self.model += self.us[w] * (self.terms.h2d * MS / 1e6 / MB) >= h2d[w]
            self.model += self.us[w] * (self.terms.d2h * MS / 1e6 / MB) >= d2h[w]
            if not isinstance(host[w], int):
                self.model += self.us[w] >= host[w]
        self._limits()
        self.model += lp_sum(self.us)

    def _ways_round(self) -> None:
        """From F of shard k up and down to its B, through the host, to its F in the next round."""
        above: Any = 0
        for i in range(len(self.terms.items) - 1, -1, -1):
            item, links = self.terms.items[i], self.terms.links
            above = self.name(above + self._up_us(i) + self._turn_us(i) + self._down_us(i), f"y{i}")
            way = links.spill_us(item.grad_bytes) + item.update_host_us
            way += links.prefetch_us(item.param_bytes)
            if item.grad_bytes:
                self.model += lp_sum(self.us) >= above + way / MS * self.part(i, "", "host")

    def _always(self) -> Any:
        """MB that are there all round: resident parameters and state, buffers for packing."""
        items = list(enumerate(self.terms.items))
        staging = 0.0
        if self.terms.plan and self.terms.offload:  # for two microbatches of two shards
            largest = max(item.offload_bytes or 0 for item in self.terms.items) / MB
            staging = 2 * min(2, self.terms.microbatches) * largest * max(1.0, self.terms.shards)
        return staging + lp_sum(
            item.param_bytes / MB * self.part(i, "resident")
            + item.state_bytes / MB * self.part(i, "", "device")
            for i, item in items
        )

    def _at_work(self, w: int) -> Any:
        """MB of the item at work when the window ends: its gradient, and its parameters unless
        they are counted anyway. A plan has copies in flight beside them."""
        up = w < self.groups
        members = list(self.members(w if up else self.windows - 1 - w))
        i = members[-1] if up else members[0]
        item, copies = self.terms.items[i], max(1.0, 2 * self.terms.shards)
        held = copies * item.param_bytes / MB * self.part(i, "streamed")
        # A spilled boundary is there while it is made, used and copied.
        held += 3 * self.terms.microbatches * item.in_bytes / MB * self.spilled[i]
        if up:
            return held
        held += item.param_bytes / MB * self.part(i, "kept")
        if not self.terms.plan:
            return held + item.grad_bytes / MB
        held += copies * item.state_bytes / MB * self.part(i, "", "device-streamed")
        return held + copies * item.grad_bytes / MB * (1 - self.last[i])

    def name(self, value: Any, name: str) -> Any:
        """A variable equal to an expression, so that rows stay short."""
        variable = self.var(name)
        self.model += variable == value
        return variable

    def _graphs(self, g: int) -> None:
        """Graphs and boundaries live from a group's forward to its backward."""
        graphs, boundaries = [], []
        for i in self.members(g):
            item = self.terms.items[i]
            graphs.append(self.terms.microbatches * item.saved_bytes / MB * self.saved[i])
            if self.terms.plan:
                boundary = self.terms.microbatches * item.in_bytes / MB / self.terms.shards
                boundaries.append(boundary * (1 - self.last[i] - self.spilled[i]))
        alive, held = lp_sum(graphs), lp_sum(boundaries)
        for w in range(self.forward(g), self.backward(g)):
            self.reserve[w] = self.reserve[w] + alive
            self.slab[w] = self.slab[w] + held

    def _limits(self) -> None:
        """Slab and reserve are parts of the device's memory that do not change during a round."""
        slab, reserve = self.var("slab"), self.var("reserve")
        self.model += slab + reserve <= self.terms.room_bytes / MB
        below: Any = 0
        for i, item in enumerate(self.terms.items):
            # When an item's backward begins, the graphs of all items below it are alive.
            least = min(item.backward_transient_bytes, item.graph_transient_bytes)
            self.model += below + least / MB <= reserve
            graphs = self.terms.microbatches * self.saved[i] + self.last[i]
            below = self.name(below + item.saved_bytes / MB * graphs, f"b{i}")
        for w in range(self.windows):
            held = self._turn() if w == self.groups else self._at_work(w)
            self.model += self.reserve[w] <= reserve
            self.model += self.slab[w] + held <= slab

    def _turn(self) -> Any:
        """MB of the block's gradients, all at once."""
        return lp_sum(
            item.grad_bytes / MB * self.last[i] for i, item in enumerate(self.terms.items)
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
        item, count = self.terms.items[i], self.terms.microbatches / MS
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
        return whole / MS * self.last[i]

    def _down_us(self, i: int) -> Any:
        """ms of an item's backward, in the block the last one, and of an update on the device."""
        item, count = self.terms.items[i], self.terms.microbatches / MS
        graph = self.saved[i] + self.packed[i]
        us = count * item.backward_us * (1 - graph - self.last[i])
        us += count * item.graph_backward_us * graph + item.graph_backward_us / MS * self.last[i]
        if item.grad_bytes:
            on_device = self.part(i, "", "device") + self.part(i, "", "device-streamed")
            us += item.update_device_us / MS * on_device
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
    period = math.floor(max(0.0, outcome.bound) * MS * (1 - 1e-6) - 1e-3)
    return Optimum(max(0, period), phases.weights())
