"""The load program while it is made: what is decided of every item, how long windows take, and
the rows that say so.

A part of the plans bounds columns of items and changes nothing else, so that a program is made once
and solved for many parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from planner.bounds.rows import (
    INFINITY,
    MB,
    ONE,
    Constraint,
    PlanSubset,
    Resource,
    Row,
    Terms,
    Weights,
    amount,
    grouped,
)
from planner.shards import Held, Mode, holdings

_FREE, _NONE, _ALL = (0.0, INFINITY), (0.0, 0.0), (1.0, 1.0)
Bound = tuple[float, float]


@dataclass(frozen=True)
class Item:
    """The columns of one item, each from 0 to 1: how much of it is held in each way; keeps its
    graph or packs it, below the block; is in the block, computed once there or again; begins a
    shard, whose boundary is kept in the slab, spilled, or there for one microbatch inside the
    block."""

    held: Mapping[Held, int]
    saved: int
    packed: int
    once: int
    again: int
    cut: int
    kept: int
    spilled: int
    inside: int


class Delay(NamedTuple):
    """A window is as long as it computes some items, and what the row says beside, in ms."""

    window: int
    items: Sequence[int]
    row: Row


class Frame:
    """Items in groups, the columns of both, and all rows so far.

    Window g is of the forward of group g; then comes the turn, of which the first microbatch has
    a window of its own where there are several, since it leaves gradients of the whole block; then
    those of backwards, the last group's first.
    """

    def __init__(self, terms: Terms, groups: int) -> None:
        self.terms, self.shapes = terms, terms.shapes
        self.columns, self.rows = 1, list[Constraint]()  # ONE is there
        self.group = grouped(self.shapes, groups)
        self.groups = self.group[-1] + 1
        self.noted = terms.costs.noted
        several = terms.microbatches > 1
        self.turn = range(self.groups, self.groups + 1 + several)
        self.ends = self.turn[-1] + self.groups  # the window of the last backward
        self.windows = self.ends + 1 + self.noted
        last = next((i for i, shape in enumerate(self.shapes) if shape.grad_bytes), 0)
        # The first window in which all norms may be there: what is below is frozen.
        self.norms = self.backward(self.group[last]) + (last == self.group.index(self.group[last]))
        self.used = {what: [Row() for _ in range(self.windows)] for what in get_args(Resource)}
        self.us = [self.new() for _ in range(self.windows)]
        self.delays = list[Delay]()
        # By group, ms of the block's loads, gradients out and updates behind its window F.
        self.late: tuple[dict[int, Row], ...] = {}, {}, {}
        self.items = [self._item(holdings(shape)) for shape in self.shapes]
        self.slab, self.reserve = self.new(), self.new()
        self.into, self.out = self.new(), self.new()  # copies in flight

    def new(self) -> int:
        """A column from 0 on."""
        self.columns += 1
        return self.columns - 1

    def _item(self, ways: tuple[Held, ...]) -> Item:
        held = {way: self.new() if len(ways) > 1 else ONE for way in ways}
        return Item(held, *(self.new() for _ in range(8)))

    def at_most(self, row: Row, bound: float = 0) -> None:
        """row <= bound"""
        self.rows.append(Constraint(row, -INFINITY, bound))

    def equal(self, row: Row, value: float = 0) -> None:
        """row = value"""
        self.rows.append(Constraint(row, value, value))

    def named(self, row: Row) -> int:
        """A column equal to the row, so that rows stay short."""
        column = self.new()
        self.equal([*row, (-1, column)])
        return column

    def use(self, resource: Resource, windows: Iterable[int], row: Row) -> None:
        """The row is taken of the resource in each of the windows."""
        for w in windows:
            self.used[resource][w] += row

    def ways(self, i: int, by: float = 1, update: str = "", *params: str) -> Row:
        """The part of item i that is held with such an update and parameters."""
        return [
            (by, x)
            for (p, u), x in self.items[i].held.items()
            if (not params or p in params) and (not update or u == update)
        ]

    def held(self, items: Iterable[int], what: str, update: str = "", *params: str) -> Row:
        """MB or ms of a cost of the items, as far as they are held so."""
        pairs = [(i, amount(self.shapes[i], what)) for i in items]
        return [x for i, by in pairs for x in self.ways(i, by, update, *params)]

    def on_device(self, items: Iterable[int], what: str) -> Row:
        """The same as far as they are updated on the device."""
        every = list(items)
        return self.held(every, what, "device") + self.held(every, what, "device-streamed")

    def block(self, i: int, by: float = 1) -> Row:
        """The part of item i that is in the block."""
        return [(by, self.items[i].once), (by, self.items[i].again)]

    def graph(self, i: int, by: float = 1) -> Row:
        """The part of item i, below the block, that is not recomputed."""
        return [(by, self.items[i].saved), (by, self.items[i].packed)]

    @property
    def whole(self) -> list[int]:
        """Columns that are 0 or 1 in any plan: how an item computes, and where shards begin."""
        packed = [one.packed for one in self.items] if self.terms.microbatches == 1 else []
        each = [(one.saved, one.once, one.again, one.cut) for one in self.items]
        return [*packed, *(column for columns in each for column in columns)]

    def moves(self, i: int) -> bool:
        """True if item i can be held in several ways."""
        return len(self.items[i].held) > 1

    def backward(self, group: int) -> int:
        """The window of the group's (last) backward."""
        return self.ends - group

    def updated(self, group: int) -> int:
        """The window of the group's updates on the device."""
        return self.ends + 1 if self.noted else self.backward(group)

    def members(self, group: int) -> list[int]:
        """The items of a group."""
        return [i for i, g in enumerate(self.group) if g == group]

    def window(self, w: int) -> list[int]:
        """The items whose forward or backward is in a window; none in the turn and at the end."""
        if w in self.turn or w > self.ends:
            return []
        return self.members(w if w < self.groups else self.ends - w)

    def bounds(self, part: PlanSubset, terms: Terms) -> dict[int, Bound]:
        """The bounds of every column that depends on the part, or on what the terms leave open."""
        bounds: dict[int, Bound] = {self.reserve: (part.least / MB, INFINITY)}
        for i in range(len(self.items)):
            mode = part.fixed[i] if part.fixed else None
            bounds |= self._cut(i, part, terms)
            bounds |= self._fixed(i, mode, part) if mode else self._open(i, part, terms)
        return bounds

    def _cut(self, i: int, part: PlanSubset, terms: Terms) -> dict[int, Bound]:
        """The bounds of where shards begin."""
        item = self.items[i]
        return {
            item.cut: (_ALL if terms.plan else _FREE) if i else _NONE,
            item.kept: _FREE if i else _NONE,
            item.inside: _FREE if i > part.low else _NONE,
        }

    def _open(self, i: int, part: PlanSubset, terms: Terms) -> dict[int, Bound]:
        """The bounds of an item of which all is to be found out."""
        item, below, inside = self.items[i], i < part.high, i >= part.low
        several, packs = terms.microbatches > 1, terms.links.d2d and self.shapes[i].offload_bytes
        may = {
            item.spilled: i > 0 and below,
            item.saved: below,
            item.packed: below and terms.offload and packs,
            item.again: inside and several,
            item.once: inside,
        }
        if self.moves(i):
            may |= dict.fromkeys(item.held.values(), True)
        must = {item.once: _ALL} if inside and not below and not several else {}
        return {column: _FREE if yes else _NONE for column, yes in may.items()} | must

    def _fixed(self, i: int, mode: Mode, part: PlanSubset) -> dict[int, Bound]:
        """The bounds of an item whose mode is known."""
        item, inside, last = self.items[i], i >= part.low, i == len(self.items) - 1
        saved = mode.activations == "saved"
        packed = (
            1 - mode.recomputed / self.terms.microbatches if mode.activations == "offload" else 0
        )
        known: dict[int, float] = {
            item.spilled: mode.spilled,
            item.saved: saved and not inside,
            item.packed: packed,
            item.again: inside and not (last or saved),
            item.once: inside and (last or saved),
        }
        if self.moves(i):
            known |= {column: held == mode.held for held, column in item.held.items()}
        return {column: (float(part), float(part)) for column, part in known.items()}

    def weights(self, values: list[float]) -> tuple[Weights, ...]:
        """The weights of every item in a solution."""
        return tuple(
            Weights(
                {held: values[x] for held, x in item.held.items()},
                values[item.saved],
                values[item.packed],
                values[item.spilled],
                values[item.once] + values[item.again],
                values[item.once],
            )
            for item in self.items
        )
