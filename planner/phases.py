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

Where updates wait for the norms of all gradients, one more window follows B_0: updates on the
device are there, those on the host there or in the windows F, and until then the gradients of what
is updated on the device stay.

With parts of layers allowed, no room for anything beside what is listed and the best rates, this
is a relaxation of every plan that takes all microbatches of a shard in turn, or those of the block
one by one: its optimum is a lower bound on the period. With room for copies in flight its solution
is what plans are made of: `rounding` turns parts into whole shards. Either says more the less it
leaves open: `narrow` divides the plans by where the block begins and by what a shard may need.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.flows import MB, MS, aside, flows, states
from planner.ledgers import boundaries, graphs, limits, waiting
from planner.modes import HELD, Held, Mode, holdings
from planner.solver import Row, Status, minimise, solve, total
from planner.terms import Part, Terms, Weights, grouped


@dataclass(frozen=True)
class Optimum:
    """period_us: what no solution of the program is below. weights: of the best, per item."""

    period_us: int
    weights: tuple[Weights, ...]


class Phases:
    """The program while it is put together and solved; PuLP's models are mutable.

    Rows are lists of (coefficient, variable); what is known is a number instead of a variable.
    """

    def __init__(self, terms: Terms, groups: int, part: Part) -> None:
        self.terms, self.part = terms, part
        self.model = minimise("phases")
        self.shapes = terms.shapes
        self.group = grouped(self.shapes, groups)
        self.groups = self.group[-1] + 1
        self.noted = terms.costs.noted
        self.windows = 2 * self.groups + 1 + self.noted
        self.ends = 2 * self.groups  # the window of the last backward
        self.us = [self.var(f"t{w}") for w in range(self.windows)]
        self.slab: list[Row] = [[] for _ in self.us]
        self.reserve: list[Row] = [[] for _ in self.us]
        self.host: list[Row] = [[] for _ in self.us]  # what waits there
        self.cut: list[Any] = []
        self.kept: list[Any] = []
        self.spilled: list[Any] = []
        self.inside: list[Any] = []
        self._choices()
        self._rules()

    def var(self, name: str) -> Any:
        """A variable from 0 on."""
        return self.model.add_variable(name, 0)

    def most(self, row: Row, bound: float) -> None:
        """The row is at most so much."""
        if all(isinstance(x, int | float) for _, x in row):
            holds = sum(by * x for by, x in row) <= bound + 1e-9
            row, bound = ([], bound) if holds else ([(1.0, self.us[0])], -1)
        if row:
            self.model += total(row) <= bound

    def name(self, row: Row, name: str) -> Any:
        """A variable equal to a row, so that rows stay short."""
        variable = self.var(name)
        self.model += total([*row, (-1, variable)]) == 0
        return variable

    def _choices(self) -> None:
        """What is decided per item."""
        terms, part = self.terms, self.part
        several = terms.microbatches > 1
        self.moves = [len(holdings(item)) > 1 for item in self.shapes]
        self.fixed = part.fixed or (None,) * len(self.shapes)
        self.held: list[dict[Held, Any]] = []
        self.saved: list[Any] = []
        self.packed: list[Any] = []
        self.once: list[Any] = []
        self.again: list[Any] = []  # in the block and recomputed
        for i, item in enumerate(self.shapes):
            mode = self.fixed[i]
            if mode:
                self._fixed(i, mode)
                continue
            ways = holdings(item)
            named = {h: self.var(f"h{i}_{HELD.index(h)}") for h in ways} if len(ways) > 1 else {}
            self.held.append(named or {ways[0]: 1})
            below, inside = i < part.high, i >= part.low
            offload = below and item.offload_bytes and terms.links.d2d and terms.offload
            self.saved.append(self.var(f"v{i}") if below else 0)
            self.packed.append(self.var(f"o{i}") if offload else 0)
            self.again.append(self.var(f"n{i}") if inside and several else 0)
            known = 0 if not inside else 1 if not below and not several else None
            self.once.append(self.var(f"l{i}") if known is None else known)

    def _fixed(self, i: int, mode: Mode) -> None:
        """What is decided of an item whose mode is known."""
        inside, last = i >= self.part.low, i == len(self.shapes) - 1
        once = inside and (last or mode.activations == "saved")
        self.held.append({mode.held: 1})
        self.saved.append(int(not inside and mode.activations == "saved"))
        self.packed.append(int(mode.activations == "offload"))
        self.again.append(int(inside and not once))
        self.once.append(int(once))

    def held_as(self, i: int, params: str = "", update: str = "", by: float = 1) -> Row:
        """How much of item i is held in these ways."""
        return [
            (by, x)
            for (p, u), x in self.held[i].items()
            if (not params or p == params) and (not update or u == update)
        ]

    def on_device(self, i: int, by: float) -> Row:
        """How much of item i is updated on the device."""
        return self.held_as(i, "", "device", by) + self.held_as(i, "", "device-streamed", by)

    def block(self, i: int, by: float = 1) -> Row:
        """How much of item i is in the block."""
        return [(by, self.once[i]), (by, self.again[i])]

    def graph(self, i: int, by: float = 1) -> Row:
        """How much of item i, below the block, is not recomputed."""
        return [(by, self.saved[i]), (by, self.packed[i])]

    def forward(self, group: int) -> int:
        return group

    def backward(self, group: int) -> int:
        return self.ends - group

    def updated(self, group: int) -> int:
        """The window of the group's updates on the device."""
        return self.ends + 1 if self.noted else self.backward(group)

    def members(self, group: int) -> Iterator[int]:
        return (i for i, g in enumerate(self.group) if g == group)

    def window(self, w: int) -> list[int]:
        """The items whose forward or backward is in a window; none in the turn and at the end."""
        if w == self.groups or w > self.ends:
            return []
        return list(self.members(w if w < self.groups else self.ends - w))

    def _rules(self) -> None:
        for i in range(len(self.shapes)):
            if self.moves[i] and not self.fixed[i]:
                self.model += total([*self.held_as(i), (-1, 1)]) == 0
                self.most([*self.held_as(i, "streamed"), *self.block(i), (1, self.saved[i])], 1)
            self.most([*self.block(i), *self.graph(i)], 1)
            if i >= self.part.high:
                self.most(self.block(i, -1), -1)
        for i in range(max(1, self.part.low), min(self.part.high + 1, len(self.shapes))):
            self.most([*self.block(i - 1), *self.block(i, -1)], 0)
        h2d, d2h, host = ([list[Any]() for _ in self.us] for _ in range(3))
        boundaries(self)
        for g in range(self.groups):
            flows(self, g, h2d, d2h, host)
            states(self, g, h2d, d2h)
            aside(self, g, h2d, d2h)
            graphs(self, g)
            waiting(self, g)
        if self.terms.plan:
            self._ways_round()
        rates = [(h2d, self.terms.h2d), (d2h, self.terms.d2h)]
        for w, us in enumerate(self.us):
            self.most([*self._compute(w), (-1, us)], 0)
            for link, rate in rates:
                self.most([*link[w], (-rate * MS / 1e6 / MB, us)], 0)
            if host[w]:
                self.most([*host[w], (-1, us)], 0)
        limits(self)
        self.model += total((1, us) for us in self.us)

    def _ways_round(self) -> None:
        """From F of shard k up and down to its B, through the host, to its F in the next round."""
        above, links = 0, self.terms.links
        for i in range(len(self.shapes) - 1, -1, -1):
            item = self.shapes[i]
            here = [*self._up_us(i), *self._turn_us(i), *self._down_us(i)]
            above = self.name([(1, above), *here], f"y{i}")
            way = links.spill_us(item.grad_bytes) + item.update_host_us
            way += links.prefetch_us(item.param_bytes)
            if item.grad_bytes:
                whole: Row = [(-1, us) for us in self.us]
                self.most([(1, above), *self.held_as(i, "", "host", way / MS), *whole], 0)

    def _compute(self, w: int) -> Row:
        """ms of compute in a window."""
        if w == self.groups:
            return [pair for i in range(len(self.shapes)) for pair in self._turn_us(i)]
        if w > self.ends:
            return [pair for i in range(len(self.shapes)) for pair in self._update_us(i)]
        of = self._up_us if w < self.groups else self._down_us
        return [pair for i in self.window(w) for pair in of(i)]

    def _up_us(self, i: int) -> Row:
        """ms of forward of an item, if it is not in the block."""
        item, count = self.shapes[i], self.terms.microbatches / MS
        if i >= self.part.high:
            return []
        packing = count * self.terms.links.pack_us(item)
        return [
            (count * item.forward_us, 1),
            *self.block(i, -count * item.forward_us),
            *self.graph(i, count * (item.graph_forward_us - item.forward_us)),
            (packing, self.packed[i]),
        ]

    def _turn_us(self, i: int) -> Row:
        """ms of what the block computes before its last backward."""
        item, count = self.shapes[i], self.terms.microbatches
        again = count * item.forward_us + (count - 1) * item.backward_us
        return [
            ((count * item.backward_us - item.graph_backward_us) / MS, self.once[i]),
            (again / MS, self.again[i]),
        ]

    def _down_us(self, i: int) -> Row:
        """ms of an item's backward, in the block the last one, of noting the norms of its
        gradients, and of an update on the device that does not wait for others."""
        item, count = self.shapes[i], self.terms.microbatches / MS
        row: Row = [
            (count * item.backward_us, 1),
            *self.block(i, -count * item.backward_us),
            *self.graph(i, count * (item.graph_backward_us - item.backward_us)),
            (item.graph_backward_us / MS, self.once[i]),
            (item.backward_us / MS, self.again[i]),
            (item.norm_us / MS, 1),
            (count * item.unpack_us, self.packed[i]),
        ]
        return row if self.noted else row + self._update_us(i)

    def _update_us(self, i: int) -> Row:
        """ms of an item's update on the device."""
        item = self.shapes[i]
        us = item.update_device_us / MS
        return self.on_device(i, us) if item.grad_bytes else []

    def weights(self) -> tuple[Weights, ...]:
        """What the solution says of every item."""
        return tuple(
            Weights(
                {held: _value(x) for held, x in self.held[i].items()},
                _value(self.saved[i]),
                _value(self.packed[i]),
                _value(self.spilled[i]),
                _value(self.once[i]) + _value(self.again[i]),
                _value(self.once[i]),
            )
            for i in range(len(self.shapes))
        )


def _value(x: Any) -> float:
    return float(x if isinstance(x, int | float) else (x.value() or 0.0))


def optimum(terms: Terms, groups: int, part: Part, *, seconds: float, seed: int) -> Optimum | None:
    """Solve the program; None when it has no solution. Without an answer in time nothing is known:
    a period of 0, and no weights."""
    phases = Phases(terms, groups, part)
    outcome = solve(phases.model, seconds=seconds, seed=seed)
    if outcome.status is Status.INFEASIBLE:
        return None
    if not outcome.found or outcome.bound is None:
        return Optimum(0, ())
    period = math.floor(max(0.0, outcome.bound) * MS * (1 - 1e-6) - 1e-3)
    return Optimum(max(0, period), phases.weights())
