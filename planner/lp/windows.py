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
leaves open: `branch_and_bound` divides the plans by where the block begins and by what a shard may
need.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.lp.flows import aside, parameters, states
from planner.lp.frame import Frame
from planner.lp.memory import (
    all_round,
    at_work,
    boundaries,
    covers,
    graphs,
    on_host,
    reserve,
    room,
    sums_of_cuts,
    waiting,
)
from planner.lp.rows import (
    INFINITY,
    MB,
    MS,
    ONE,
    Columns,
    Constraint,
    Part,
    Piece,
    Resource,
    Row,
    Terms,
    Weights,
    at_most,
    equal,
)
from planner.lp.solver import Linear, Status

_KEPT = 32  # programs that stay in the solver


@dataclass(frozen=True)
class Optimum:
    """period_us: what no solution of the program is below. weights: of the best, per item."""

    period_us: int
    weights: tuple[Weights, ...]


@dataclass(frozen=True)
class Solution:
    """An optimum of the program for a part of the plans."""

    terms: Terms
    part: Part
    optimum: Optimum


class Phases:
    """The program, made once for its terms and solved for one part of the plans after another.

    Only bounds of columns and of a few rows change between; rows of one part come and go.
    """

    def __init__(self, terms: Terms, groups: int) -> None:
        columns = Columns()
        frame = self.frame = Frame(terms, groups, columns)
        pieces = [boundaries(frame), reserve(frame), on_host(frame), all_round(frame)]
        pieces.append(at_work(frame))
        for g in range(frame.groups):
            made = parameters(frame, g), states(frame, g), aside(frame, g)
            pieces += [*made, graphs(frame, g), waiting(frame, g)]
        self.sums: list[int] = []
        if not terms.plan:
            piece, self.sums = sums_of_cuts(frame)
            pieces.append(piece)
        rows = list(_items(frame))  # first, since the bounds of some change
        for piece in pieces:
            rows += piece.constraints
        if terms.plan:
            rows += _ways_round(frame)
        rows += _windows(frame, pieces)
        self.host = range(len(rows), len(rows) + frame.windows)
        rows += [at_most(row, INFINITY) for row in _uses(frame, pieces, "host_bytes")]
        self.room = len(rows)
        rows.append(room(frame, terms))
        self.model = Linear(columns.lower, columns.upper, rows, frame.us)

    def solve(
        self, part: Part, terms: Terms, seconds: float, seed: int, *, near: bool
    ) -> Optimum | None:
        """The best of a part of the plans; the terms may differ from those of the program in what
        there is of memory. None when there is none. Without an answer in time nothing is known: a
        period of 0, and no weights."""
        model, host = self.model, terms.host_bytes
        model.bound_columns(dict(self.frame.bounds(part, terms)))
        rows = {i: (float(i >= part.high), 1.0) for i in range(len(self.frame.items))}
        rows |= {w: (-INFINITY, INFINITY if host is None else host / MB) for w in self.host}
        model.bound_rows(rows | {self.room: (-INFINITY, terms.room_bytes / MB)})
        more = [*covers(self.frame, self.sums, part)] if self.sums else []
        outcome, values = model.solve(more, seconds=seconds, seed=seed, near=near)
        if outcome.status is Status.INFEASIBLE:
            return None
        if not outcome.found or outcome.bound is None:
            return Optimum(0, ())
        period = math.floor(max(0.0, outcome.bound) * MS * (1 - 1e-6) - 1e-3)
        return Optimum(max(0, period), self.frame.weights(values))


def _items(frame: Frame) -> Iterator[Constraint]:
    """An item is recomputed or not, in one place; if it is above where the block must begin, in
    the block. Whatever moves is held in some way, and the block is at the top."""
    count = range(len(frame.items))
    for i in count:
        yield Constraint([*frame.block(i), *frame.graph(i)], 0, 1)
    for i in count:
        if frame.moves(i):
            streamed = frame.held_as(i, "streamed")
            yield equal(frame.held_as(i), 1)
            yield at_most([*streamed, *frame.block(i), (1, frame.items[i].saved)], 1)
    for i in count[1:]:
        yield at_most([*frame.block(i - 1), *frame.block(i, -1)], 0)


def _windows(frame: Frame, pieces: Sequence[Piece]) -> Iterator[Constraint]:
    """Windows are as long as what is in them takes, and memory is within slab and reserve."""
    terms = frame.terms
    rates: list[tuple[Resource, int]] = [("h2d", terms.h2d), ("d2h", terms.d2h)]
    for resource, rate in rates:
        for us, row in zip(frame.us, _uses(frame, pieces, resource), strict=True):
            yield at_most([*row, (-rate * MS / 1e6 / MB, us)], 0)
    for us, row in zip(frame.us, _uses(frame, pieces, "host_us"), strict=True):
        yield at_most([*row, (-1, us)], 0)
    for w, us in enumerate(frame.us):
        yield at_most([*_compute(frame, w), (-1, us)], 0)
    held: list[tuple[Resource, int]] = [("slab", frame.slab), ("reserve", frame.reserve)]
    for resource, column in held:
        for row in _uses(frame, pieces, resource):
            yield at_most([*row, (-1, column)], 0)


def _uses(frame: Frame, pieces: Sequence[Piece], resource: Resource) -> list[Row]:
    """The use of a resource by all pieces, by window."""
    rows: list[Row] = [[] for _ in range(frame.windows)]
    for piece in pieces:
        for what, w, by, column in piece.uses:
            if what == resource:
                rows[w].append((by, column))
    return rows


def _ways_round(frame: Frame) -> Iterator[Constraint]:
    """From F of shard k up and down to its B, through the host, to its F in the next round."""
    links, above = frame.terms.links, Row()
    whole: Row = [(-1, us) for us in frame.us]
    for i in range(len(frame.items) - 1, -1, -1):
        shape = frame.shapes[i]
        column = frame.columns.new()
        here = [*_up_us(frame, i), *_turn_us(frame, i), *_down_us(frame, i)]
        yield equal([*above, *here, (-1, column)])
        above = [(1, column)]
        way = links.spill_us(shape.grad_bytes) + shape.update_host_us
        way += links.prefetch_us(shape.param_bytes)
        if shape.grad_bytes:
            yield at_most([*above, *frame.held_as(i, "", "host", way / MS), *whole], 0)


def _compute(frame: Frame, w: int) -> Row:
    """ms of compute in a window."""
    every = range(len(frame.items))
    if w == frame.groups:
        return [x for i in every for x in _turn_us(frame, i)]
    if w > frame.ends:
        return [x for i in every for x in _update_us(frame, i)]
    of = _up_us if w < frame.groups else _down_us
    return [x for i in frame.window(w) for x in of(frame, i)]


def _up_us(frame: Frame, i: int) -> Row:
    """ms of forward of an item, as far as it is not in the block."""
    shape, count = frame.shapes[i], frame.terms.microbatches / MS
    packing = count * frame.terms.links.pack_us(shape)
    return [
        (count * shape.forward_us, ONE),
        *frame.block(i, -count * shape.forward_us),
        *frame.graph(i, count * (shape.graph_forward_us - shape.forward_us)),
        (packing, frame.items[i].packed),
    ]


def _turn_us(frame: Frame, i: int) -> Row:
    """ms of what the block computes before its last backward."""
    shape, count = frame.shapes[i], frame.terms.microbatches
    again = count * shape.forward_us + (count - 1) * shape.backward_us
    return [
        ((count * shape.backward_us - shape.graph_backward_us) / MS, frame.items[i].once),
        (again / MS, frame.items[i].again),
    ]


def _down_us(frame: Frame, i: int) -> Row:
    """ms of an item's backward, in the block the last one, of noting the norms of its
    gradients, and of an update on the device that does not wait for others."""
    shape, count = frame.shapes[i], frame.terms.microbatches / MS
    row: Row = [
        (count * shape.backward_us, ONE),
        *frame.block(i, -count * shape.backward_us),
        *frame.graph(i, count * (shape.graph_backward_us - shape.backward_us)),
        (shape.graph_backward_us / MS, frame.items[i].once),
        (shape.backward_us / MS, frame.items[i].again),
        (shape.norm_us / MS, ONE),
        (count * shape.unpack_us, frame.items[i].packed),
    ]
    return row if frame.noted else row + _update_us(frame, i)


def _update_us(frame: Frame, i: int) -> Row:
    """ms of an item's update on the device."""
    shape = frame.shapes[i]
    return frame.on_device(i, shape.update_device_us / MS) if shape.grad_bytes else []


@lru_cache(maxsize=_KEPT)
def _phases(terms: Terms, groups: int) -> Phases:
    return Phases(terms, groups)


def optimum(
    terms: Terms, groups: int, part: Part, *, seconds: float, seed: int, near: bool = False
) -> Optimum | None:
    """Solve the program for a part of the plans; None when it has no solution. near: from the last
    solution for the same terms that was not; the period is the same, the weights may differ."""
    same = replace(terms, room_bytes=0, tight=False, host_bytes=None)
    return _phases(same, groups).solve(part, terms, seconds, seed, near=near)
