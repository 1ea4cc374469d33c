"""The load program while it is made: what is decided of every item, how long windows take, and
the rows that say so.

A part of the plans changes the bounds of few rows and columns, so that a program is made once and
solved for many parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from planner.lp.rows import (
    INFINITY,
    MB,
    MS,
    ONE,
    Constraint,
    Resource,
    Row,
    Terms,
    Weights,
    grouped,
)
from planner.shards import Held, holdings

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


class Frame:
    """Items in groups, the columns of both, and all rows so far.

    Window g is of the forward of group g, the next one of the turn, those from there on of
    backwards, the last group's first.
    """

    def __init__(self, terms: Terms, groups: int) -> None:
        self.terms, self.shapes = terms, terms.shapes
        self.params = [shape.param_bytes / MB for shape in self.shapes]
        self.params_out = [shape.param_out_bytes / MB for shape in self.shapes]
        self.grads = [shape.grad_bytes / MB for shape in self.shapes]
        self.states = [shape.state_bytes / MB for shape in self.shapes]
        self.device_ms = [shape.update_device_us / MS for shape in self.shapes]
        self.host_ms = [shape.update_host_us / MS for shape in self.shapes]
        self.columns, self.rows = 1, list[Constraint]()  # ONE is there
        self.group = grouped(self.shapes, groups)
        self.groups = self.group[-1] + 1
        self.noted = terms.costs.noted
        self.windows = 2 * self.groups + 1 + self.noted
        self.ends = 2 * self.groups  # the window of the last backward
        last = next((i for i, shape in enumerate(self.shapes) if shape.grad_bytes), 0)
        # The first window in which all norms may be there: what is below is frozen.
        self.norms = self.backward(self.group[last]) + (last == self.group.index(self.group[last]))
        self.used = {what: [Row() for _ in range(self.windows)] for what in get_args(Resource)}
        self.us = [self.new() for _ in range(self.windows)]
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

    def held(
        self, items: Iterable[int], each: Sequence[float], update: str = "", *params: str
    ) -> Row:
        """MB or ms of the items, `each` of all items, as far as they are held so."""
        return [x for i in items for x in self.ways(i, each[i], update, *params)]

    def on_device(self, items: Iterable[int], each: Sequence[float]) -> Row:
        """The same as far as they are updated on the device."""
        every = list(items)
        return self.held(every, each, "device") + self.held(every, each, "device-streamed")

    def block(self, i: int, by: float = 1) -> Row:
        """The part of item i that is in the block."""
        return [(by, self.items[i].once), (by, self.items[i].again)]

    def graph(self, i: int, by: float = 1) -> Row:
        """The part of item i, below the block, that is not recomputed."""
        return [(by, self.items[i].saved), (by, self.items[i].packed)]

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
        if w == self.groups or w > self.ends:
            return []
        return self.members(w if w < self.groups else self.ends - w)

    def bounds(self) -> dict[int, Bound]:
        """The bounds of the columns of items."""
        bounds: dict[int, Bound] = {}
        for i in range(len(self.items)):
            bounds |= self._bounds_of(i)
        return bounds

    def _bounds_of(self, i: int) -> dict[int, Bound]:
        item, terms = self.items[i], self.terms
        below, inside, several = i < len(self.items) - 1, i >= terms.lowest, terms.microbatches > 1
        packs = terms.offload and terms.links.d2d and self.shapes[i].offload_bytes
        may = {
            item.cut: i > 0,
            item.kept: i > 0,
            item.inside: i > terms.lowest,
            item.spilled: i > 0 and below,
            item.saved: below,
            item.packed: below and packs,
            item.again: inside and several,
            item.once: inside,
        }
        bounds = {column: _FREE if yes else _NONE for column, yes in may.items()}
        if i and terms.plan:
            bounds[item.cut] = _ALL
        if not below and not several:
            bounds[item.once] = _ALL
        return bounds

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
