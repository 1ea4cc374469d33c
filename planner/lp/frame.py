"""The columns of the load program: what is decided of every item, and how long windows take.

A part of the plans bounds these columns and changes nothing else, so that a program is made once
and solved for many parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.lp.rows import INFINITY, ONE, Columns, Part, Row, Terms, Weights, grouped
from planner.shards import HELD, Held, Mode, holdings

_FREE, _NONE, _ALL = (0.0, INFINITY), (0.0, 0.0), (1.0, 1.0)
Bound = tuple[float, float]


@dataclass(frozen=True)
class Item:
    """The columns of one item, each from 0 to 1: how much of it is held in each way; keeps its
    graph or packs it, below the block; is in the block, computed once there or again; begins a
    shard, whose boundary is kept in the slab, spilled, or there for one microbatch inside the
    block."""

    held: dict[Held, int]
    saved: int
    packed: int
    once: int
    again: int
    cut: int
    kept: int
    spilled: int
    inside: int

    @classmethod
    def new(cls, columns: Columns, ways: tuple[Held, ...]) -> "Item":
        held = {way: columns.new() if len(ways) > 1 else ONE for way in ways}
        return cls(held, *(columns.new() for _ in range(8)))


class Frame:
    """Items in groups, and two windows for each group, with all columns that pieces share."""

    def __init__(self, terms: Terms, groups: int, columns: Columns) -> None:
        self.terms, self.columns = terms, columns
        self.shapes = terms.shapes
        self.group = grouped(self.shapes, groups)
        self.groups = self.group[-1] + 1
        self.noted = terms.costs.noted
        self.windows = 2 * self.groups + 1 + self.noted
        self.ends = 2 * self.groups  # the window of the last backward
        self.us = [columns.new() for _ in range(self.windows)]
        self.items = [Item.new(columns, holdings(shape)) for shape in self.shapes]
        self.slab, self.reserve = columns.new(), columns.new()
        self.into, self.out = columns.new(), columns.new()  # copies in flight

    def held_as(self, i: int, params: str = "", update: str = "", by: float = 1) -> Row:
        """The part of item i that is held in these ways."""
        return [
            (by, x)
            for (p, u), x in self.items[i].held.items()
            if (not params or p == params) and (not update or u == update)
        ]

    def on_device(self, i: int, by: float) -> Row:
        """The part of item i that is updated on the device."""
        return self.held_as(i, "", "device", by) + self.held_as(i, "", "device-streamed", by)

    def block(self, i: int, by: float = 1) -> Row:
        """The part of item i that is in the block."""
        return [(by, self.items[i].once), (by, self.items[i].again)]

    def graph(self, i: int, by: float = 1) -> Row:
        """The part of item i, below the block, that is not recomputed."""
        return [(by, self.items[i].saved), (by, self.items[i].packed)]

    def moves(self, i: int) -> bool:
        """True if item i can be held in several ways."""
        return len(self.items[i].held) > 1

    def forward(self, group: int) -> int:
        """The window of the group's forward."""
        return group

    def backward(self, group: int) -> int:
        """The window of the group's (last) backward."""
        return self.ends - group

    def updated(self, group: int) -> int:
        """The window of the group's updates on the device."""
        return self.ends + 1 if self.noted else self.backward(group)

    def members(self, group: int) -> Iterator[int]:
        """The items of a group."""
        return (i for i, g in enumerate(self.group) if g == group)

    def window(self, w: int) -> list[int]:
        """The items whose forward or backward is in a window; none in the turn and at the end."""
        if w == self.groups or w > self.ends:
            return []
        return list(self.members(w if w < self.groups else self.ends - w))

    def bounds(self, part: Part, terms: Terms) -> Iterator[tuple[int, Bound]]:
        """The bounds of every column that depends on the part, or on what the terms leave open."""
        for i in range(len(self.items)):
            yield from self._bounds(i, part, terms)
        yield self.reserve, (part.least / (1 << 20), INFINITY)
        spare, count = 0.0 if terms.tight or not terms.plan else 1 / (1 << 20), len(self.shapes)
        yield self.into, (spare * sum(x.param_bytes for x in self.shapes) / count, INFINITY)
        yield self.out, (spare * sum(x.grad_bytes for x in self.shapes) / count, INFINITY)

    def _bounds(self, i: int, part: Part, terms: Terms) -> Iterator[tuple[int, Bound]]:
        item, mode = self.items[i], part.fixed[i] if part.fixed else None
        below, there = i < part.high, i > 0
        yield item.cut, (_ALL if terms.plan else _FREE) if there else _NONE
        yield item.kept, _FREE if there else _NONE
        yield item.inside, _FREE if i > part.low else _NONE
        if mode:
            yield item.spilled, _ALL if mode.spilled else _NONE
            yield from self._fixed(i, mode, part)
            return
        several, inside = terms.microbatches > 1, i >= part.low
        packs = below and self.shapes[i].offload_bytes and terms.links.d2d and terms.offload
        yield item.spilled, _FREE if there and below else _NONE
        yield item.saved, _FREE if below else _NONE
        yield item.packed, _FREE if packs else _NONE
        yield item.again, _FREE if inside and several else _NONE
        known = _ALL if not below and not several else _FREE
        yield item.once, known if inside else _NONE
        if self.moves(i):
            for column in item.held.values():
                yield column, _FREE

    def _fixed(self, i: int, mode: Mode, part: Part) -> Iterator[tuple[int, Bound]]:
        """The bounds of an item whose mode is known."""
        item, inside, last = self.items[i], i >= part.low, i == len(self.items) - 1
        once = inside and (last or mode.activations == "saved")
        yield item.saved, _ALL if not inside and mode.activations == "saved" else _NONE
        yield item.packed, _ALL if mode.activations == "offload" else _NONE
        yield item.again, _ALL if inside and not once else _NONE
        yield item.once, _ALL if once else _NONE
        if self.moves(i):
            for held in HELD:
                if held in item.held:
                    yield item.held[held], _ALL if held == mode.held else _NONE

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
