"""The load program over the phases of a round: what stays, what moves, what is recomputed.

Items (layers, or some of them together) are put into groups, and a round into two windows per
group, F_g going up and B_g coming down, and two for the turn between, in which a block of items at
the top computes all but the last backward, one microbatch's graphs at a time: one until all
gradients of the block are there, and the rest. Times of windows are unknown; in each of them

    window >= compute in it        window >= bytes in / h2d rate, bytes out / d2h rate
    window >= host updates in it   memory at its end <= capacity

What a group needs in window F_g comes in between its update and F_g (and holds memory until
then); what it needs again in B_g was kept, or comes in between F_g and B_g; its gradients leave
after B_g, its updates follow them, its parameters follow the updates:

    .. B_g |-- gradients out --|            windows wrap around the end of the round
           |---- updates on the host ----|
           |---- parameters in -----------| F_g .. kept, or in again .. B_g

Where updates wait for the norms of all gradients, one more window follows B_0: updates on the
device are there, those on the host there, in the windows F or below the last layer that is trained,
and until then the gradients of what is updated on the device stay.

A bound also knows the order in a window: an item goes backward once its parameters have come, and
what it makes leaves once it has; a shard begins where two items are treated differently; and of few
items each is treated as a whole. The block goes forward in the turn, so that what it needs may come
while items below do.

With parts of layers allowed, no room for anything beside what is listed and the best rates, this
is a relaxation of every plan that takes all microbatches of a shard in turn, or those of the block
one by one: its optimum is a lower bound on the period. With room for copies in flight its solution
is what plans are made of: `rounding` turns parts into whole shards. Either says more the less it
leaves open: `branch_and_bound` divides the plans by where the block begins and by what a shard may
need.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.bounds.flows import aside, parameters, states
from planner.bounds.frame import Frame
from planner.bounds.memory import (
    all_round,
    at_work,
    boundaries,
    covers,
    graphs,
    on_host,
    one_mode,
    reserve,
    waiting,
)
from planner.bounds.rows import (
    INFINITY,
    MB,
    MS,
    ONE,
    Constraint,
    PlanSubset,
    Resource,
    Row,
    Terms,
    Weights,
)
from planner.bounds.solver import Linear, Status
from planner.inputs import Effort
from planner.shards import ShardCost

_KEPT = 32  # programs that stay in the solver


@dataclass(frozen=True)
class Solution:
    """The program's answer for a part of the plans. period_us: what none of them is below.
    weights: of the best solution, per item; none where time was up."""

    terms: Terms
    part: PlanSubset
    period_us: int
    weights: tuple[Weights, ...]


class Phases:
    """The program, made once for its terms and solved for one part of the plans after another.

    Only bounds of columns and of a few rows change between; rows of one part come and go.
    """

    def __init__(self, terms: Terms, groups: int) -> None:
        frame = self.frame = Frame(terms, groups)
        _items(frame)  # first, since the bounds of some rows change
        for all_items in (boundaries, reserve, on_host, all_round, at_work):
            all_items(frame)
        for g in range(frame.groups):
            for one_group in (parameters, states, aside, graphs, waiting):
                one_group(frame, g)
        self.sums = [] if terms.plan else one_mode(frame)
        _ways_round(frame)
        _windows(frame)
        self.host = range(len(frame.rows), len(frame.rows) + frame.windows)
        for row in frame.used["host_bytes"]:
            frame.at_most(row, INFINITY)
        self.room = len(frame.rows)
        frame.at_most([(1, frame.slab), (1, frame.reserve)], terms.room_bytes / MB)
        self.model = Linear(frame.columns, frame.rows, dict.fromkeys(frame.us, 1.0))

    def solve(
        self, part: PlanSubset, terms: Terms, seconds: float, seed: int, *, near: bool
    ) -> Solution | None:
        """The best of a part of the plans; the terms may differ from those of the program in what
        there is of memory. None when there is none. Without an answer in time nothing is known: a
        period of 0, and no weights."""
        more = self._limited(part, terms)
        outcome, values = self.model.solve(more, seconds=seconds, seed=seed, near=near)
        if outcome.status is Status.INFEASIBLE:
            return None
        if outcome.objective is None:
            return Solution(terms, part, 0, ())
        return Solution(terms, part, _us(outcome.objective), self.frame.weights(values))

    def whole_us(
        self, part: PlanSubset, terms: Terms, seconds: float, seed: int, nodes: int
    ) -> int | None:
        """A lower bound on the plans of a part, with whole items; None where there are none."""
        more, columns = self._limited(part, terms), self.frame.whole
        found = self.model.whole_bound(columns, more, seconds=seconds, seed=seed, nodes=nodes)
        return None if found == math.inf else _us(found)

    def _limited(self, part: PlanSubset, terms: Terms) -> list[Constraint]:
        """The rows of a part of the plans, beside which columns and other rows are bounded by it
        and by what there is of memory."""
        model, host = self.model, terms.host_bytes
        model.bound_columns(self.frame.bounds(part, terms))
        rows = {i: (float(i >= part.high), 1.0) for i in range(len(self.frame.items))}
        rows |= {w: (-INFINITY, INFINITY if host is None else host / MB) for w in self.host}
        model.bound_rows(rows | {self.room: (-INFINITY, terms.room_bytes / MB)})
        return [*covers(self.frame, self.sums, part)] if self.sums else []


def _us(found_ms: float) -> int:
    """µs of a bound in ms, which the solver knows so well."""
    return max(0, math.floor(max(0.0, found_ms) * MS * (1 - 1e-6) - 1e-3))


def _items(frame: Frame) -> None:
    """An item is recomputed or not, in one place; if it is above where the block must begin, in
    the block. Whatever moves is held in some way, and the block is at the top."""
    count = range(len(frame.items))
    frame.rows += [Constraint([*frame.block(i), *frame.graph(i)], 0, 1) for i in count]
    for i in filter(frame.moves, count):
        streamed = frame.ways(i, 1, "", "streamed")
        frame.equal(frame.ways(i), 1)
        frame.at_most([*streamed, *frame.block(i), (1, frame.items[i].saved)], 1)
    for i in count[1:]:
        frame.at_most([*frame.block(i - 1), *frame.block(i, -1)])


def _windows(frame: Frame) -> None:
    """Windows are as long as what is in them takes, and memory is within slab and reserve."""
    rates: list[tuple[Resource, float]] = [
        ("h2d", frame.terms.h2d * MS / 1e6 / MB),
        ("d2h", frame.terms.d2h * MS / 1e6 / MB),
        ("host_us", 1),
    ]
    for resource, rate in rates:
        for us, row in zip(frame.us, frame.used[resource], strict=True):
            frame.at_most([*row, (-rate, us)])
    for w, us in enumerate(frame.us):
        frame.at_most([*_compute(frame, w), (-1, us)])
    for w, items, row in frame.delays:
        of = _up_us if w < frame.groups else _down_us
        compute = [x for i in items for x in of(frame, i)]
        frame.at_most([*compute, *row, (-1, frame.us[w])])
    for late in frame.late:
        before: Row = [(-1, frame.us[frame.turn[0]])]
        for g, row in late.items():
            before = [*before, *row]
            frame.at_most([*_block_us(frame, frame.members(g)[-1]), *before])
    held: list[tuple[Resource, int]] = [("slab", frame.slab), ("reserve", frame.reserve)]
    for resource, column in held:
        for row in frame.used[resource]:
            frame.at_most([*row, (-1, column)])


def _ways_round(frame: Frame) -> None:
    """From F of shard k up and down to its B, through the host, to its F in the next round.

    period >= compute of the items from k on + gradients out + update + parameters in, where the
    host updates k; in a bound also parameters out and in, where the device does and they move. Of
    parts of items this is true as well: with none of it k computes within the period, with all of
    it the rest is behind that.
    """
    above = Row()
    whole: Row = [(-1, us) for us in frame.us]
    for i, shape in reversed(list(enumerate(frame.shapes))):
        here = [*_up_us(frame, i), *_turn_us(frame, i), *_down_us(frame, i)]
        above = [(1, frame.named([*above, *here]))]
        if shape.grad_bytes:
            host, device = _ways_us(frame.terms, shape)
            ways = frame.ways(i, host / MS, "host")
            ways += frame.ways(i, device / MS, "device-streamed", "kept", "streamed")
            norms = sum(one.norm_us for one in frame.shapes[i:])
            frame.at_most([*above, *ways, *whole], norms / MS)


def _ways_us(terms: Terms, shape: ShardCost) -> tuple[float, float]:
    """µs from the last backward of a shard to its next forward, updated on the host or, with
    parameters that move, on the device."""
    links = terms.links
    if terms.plan:
        copies = links.spill_us(shape.grad_bytes) + links.prefetch_us(shape.param_bytes)
        return copies + shape.update_host_us, 0
    into_us = shape.param_bytes * 1e6 / terms.h2d
    out_us = [size * 1e6 / terms.d2h for size in (shape.grad_bytes, shape.param_out_bytes)]
    return out_us[0] + shape.update_host_us + into_us, out_us[1] + into_us


def _compute(frame: Frame, w: int) -> Row:
    """ms of compute in a window."""
    every = range(len(frame.items))
    if w == frame.turn[-1]:
        first = [(-us, x) for i in every for us, x in _first_us(frame, i)]
        return [*first, *(x for i in every for x in _turn_us(frame, i))]
    if w in frame.turn:
        return [x for i in every for x in _first_us(frame, i)]
    if w > frame.ends:
        return _update_us(frame, every)
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


def _first_us(frame: Frame, i: int) -> Row:
    """ms of that until all gradients of the block are there; none in a plan, which has room for
    them from the beginning of the turn on."""
    shape, item = frame.shapes[i], frame.items[i]
    if frame.terms.plan or len(frame.turn) == 1:
        return []
    again = shape.forward_us + shape.backward_us
    return [(shape.backward_us / MS, item.once), (again / MS, item.again)]


def _block_us(frame: Frame, first: int) -> Row:
    """ms that the block's first microbatch computes from an item on: through those above and, in a
    window of its own, down through all."""
    of = _first_us if len(frame.turn) > 1 else _turn_us
    above = [x for i in range(first, len(frame.items)) for x in of(frame, i)]
    down = range(first) if len(frame.turn) > 1 else ()
    below = [x for i in down for x in frame.block(i, frame.shapes[i].graph_backward_us / MS)]
    return [*above, *below]


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
    return row if frame.noted else row + _update_us(frame, [i])


def _update_us(frame: Frame, items: Iterable[int]) -> Row:
    """ms of updates of these items on the device."""
    trained = [i for i in items if frame.shapes[i].grad_bytes]
    return frame.on_device(trained, "update_device_us")


@lru_cache(maxsize=_KEPT)
def _phases(terms: Terms, groups: int) -> Phases:
    return Phases(terms, groups)


def solved(
    terms: Terms, part: PlanSubset, groups: int, effort: Effort, *, near: bool = False
) -> Solution | None:
    """Solve the program for a part of the plans; None when it has no solution. near: from the last
    solution for the same terms that was not; the period is the same, the weights may differ."""
    program = _phases(replace(terms, room_bytes=0, host_bytes=None), groups)
    return program.solve(part, terms, max(1.0, effort.left), effort.seed, near=near)


def whole_us(found: Solution, groups: int, effort: Effort, nodes: int) -> int | None:
    """A lower bound on the plans of the solution's part, whose items are whole, from a search of so
    many nodes; None where there are none."""
    program = _phases(replace(found.terms, room_bytes=0, host_bytes=None), groups)
    return program.whole_us(found.part, found.terms, max(1.0, effort.left), effort.seed, nodes)
