"""The memory of the load program (`windows`): boundaries, graphs, slab and reserve.

Slab and reserve are parts of the device's memory that do not change during a round. In the slab
are parameters, gradients, state in flight and boundaries; in the reserve live graphs and what the
op at work takes.
"""

from collections.abc import Iterator
from itertools import pairwise

from planner.lp.frame import Frame
from planner.lp.rows import MB, ONE, Constraint, Part, Piece, Row, Terms, at_most
from planner.shards import ShardCost


def boundaries(frame: Frame) -> Piece:
    """Where shards begin, the boundary before them waits for its backward: in the slab, on the
    host, or (inside the block) for one microbatch only.

    A bound decides where that is; in a plan every item is a shard.
    """
    piece = Piece()
    for i, shape in enumerate(frame.shapes):
        if not i or not shape.in_bytes:
            continue
        item = frame.items[i]
        below, own = frame.block(i - 1, -1), frame.block(i)
        ways: Row = [(-1, x) for x in (item.kept, item.spilled, item.inside)]
        piece.constraints += [
            at_most([(1, item.cut), *ways], 0),
            at_most([*own, *below, (-1, item.kept)], 0),  # all microbatches wait before the block
            at_most([(1, item.inside), *below], 0),
            at_most([(1, item.spilled), *own, (1, item.saved)], 1),
        ]
    return piece


def sums_of_cuts(frame: Frame) -> tuple[Piece, list[int]]:
    """Columns, for every item, of how many before it are cut, not recomputed or computed once."""
    piece, sums = Piece(), [frame.columns.new()]
    piece.constraints.append(at_most([(1, sums[0])], 0))
    for i, item in enumerate(frame.items):
        ways = [*frame.graph(i), (1, item.once), (1, item.cut)]
        sums.append(piece.named([(1, sums[-1]), *ways], frame.columns))
    return piece, sums


def covers(frame: Frame, sums: list[int], part: Part) -> Iterator[Constraint]:
    """No shard that recomputes is longer than its transients may be in this part of the plans:
    wherever one would be, it is cut, or something of it is not recomputed."""
    items, costs = frame.terms.items, frame.terms.costs
    windows: list[tuple[int, int]] = []
    end = 0
    for i in range(len(items)):
        end = max(end, i)
        while (
            end < len(items) and costs.backward_transient(items[i][0], items[end][1]) <= part.most
        ):
            end += 1
        if end == len(items):
            break
        windows.append((i, end))
    # Of windows with the same end the shortest says all.
    for (first, last), (_, other) in pairwise([*windows, (0, -1)]):
        if last != other:
            cut = frame.items[first].cut
            yield at_most([(-1, sums[last + 1]), (1, sums[first]), (1, cut)], -1)


def graphs(frame: Frame, g: int) -> Piece:
    """Graphs and boundaries live from a group's forward to its backward, gradients of the block
    from the turn on."""
    piece, members = Piece(), list(frame.members(g))
    count = frame.terms.microbatches
    alive = [(count * frame.shapes[i].saved_bytes / MB, frame.items[i].saved) for i in members]
    held = [(count * frame.shapes[i].in_bytes / MB, frame.items[i].kept) for i in members]
    between = range(frame.forward(g), frame.backward(g))
    piece.use("reserve", between, piece.named(alive, frame.columns))
    piece.use("slab", between, piece.named(held, frame.columns))
    if count > 1:
        grads = [x for i in members for x in frame.block(i, frame.shapes[i].grad_bytes / MB)]
        after = range(frame.groups + 1, frame.backward(g))
        piece.use("slab", after, piece.named(grads, frame.columns))
    return piece


def waiting(frame: Frame, g: int) -> Piece:
    """Gradients wait on the device for updates there, and in a plan the parameters beside them
    unless they are there anyway."""
    piece = Piece()
    waits = range(frame.backward(g) + 1, frame.updated(g))
    if not waits:
        return piece
    row: Row = []
    for i in frame.members(g):
        shape = frame.shapes[i]
        row += frame.on_device(i, shape.grad_bytes / MB)
        for params in ("kept", "streamed") if frame.terms.plan else ():
            row += frame.held_as(i, params, "device-streamed", shape.param_bytes / MB)
    piece.use("slab", waits, piece.named(row, frame.columns))
    return piece


def room(frame: Frame, terms: Terms) -> Constraint:
    """slab + reserve <= what the device offers"""
    return at_most([(1, frame.slab), (1, frame.reserve)], terms.room_bytes / MB)


def reserve(frame: Frame) -> Piece:
    """Graphs alive and what an op takes are within the reserve, whichever item is at work."""
    piece = Piece()
    below: Row = []
    for i, shape in enumerate(frame.shapes):
        # When an item's backward begins, the graphs of all items below it are alive.
        item, count, size = frame.items[i], frame.terms.microbatches, shape.saved_bytes / MB
        again, alone = shape.backward_transient_bytes / MB, shape.graph_transient_bytes / MB
        needs: Row = [
            (again, ONE),
            (count * size + alone - again, item.saved),
            (alone - again, item.packed),
            (min(size + alone, again) - again, item.once),
        ]
        piece.constraints.append(at_most([*below, *needs, (-1, frame.reserve)], 0))
        own: Row = [(count * size, item.saved), (size, item.once)]
        below = [(1, piece.named([*below, *own], frame.columns))]
    return piece


def on_host(frame: Frame) -> Piece:
    """In a plan one whole gradient is on its way to what waits on the host."""
    piece = Piece()
    if frame.terms.plan:
        spare = frame.columns.new()
        for i, shape in enumerate(frame.shapes):
            row = frame.held_as(i, "", "host", shape.grad_bytes / MB)
            piece.constraints.append(at_most([*row, (-1, spare)], 0))
        piece.use("host_bytes", range(frame.windows), spare)
    return piece


def all_round(frame: Frame) -> Piece:
    """Slab that is taken all round: resident parameters and state; in a plan buffers for packing,
    and copies in flight: whole ones, however small the part of each shard that moves is."""
    piece, terms = Piece(), frame.terms
    row: Row = []
    for i, shape in enumerate(frame.shapes):
        row += frame.held_as(i, "resident", "", shape.param_bytes / MB)
        row += frame.held_as(i, "", "device", shape.state_bytes / MB)
    if terms.plan:
        row += [(1, frame.into), (1, frame.out)]
        for i, shape in enumerate(frame.shapes):
            piece.constraints += _in_flight(frame, i, shape)
    if terms.plan and terms.offload:  # for two microbatches of two shards
        largest = max(shape.offload_bytes or 0 for shape in frame.shapes) / MB
        row.append((2 * min(2, terms.microbatches) * largest, ONE))
    piece.use("slab", range(frame.windows), piece.named(row, frame.columns))
    return piece


def _in_flight(frame: Frame, i: int, shape: ShardCost) -> Iterator[Constraint]:
    """Copies of a shard in each direction fit the room that the slab has for them."""
    param, state, grad = shape.param_bytes / MB, shape.state_bytes / MB, shape.grad_bytes / MB
    moved = frame.held_as(i, "streamed", "", param) + frame.held_as(i, "kept", "", param)
    streams = frame.held_as(i, "", "device-streamed", state)
    yield at_most([*moved, (-1, frame.into)], 0)
    yield at_most([*streams, (-1, frame.into)], 0)
    yield at_most([*streams, *frame.held_as(i, "", "host", grad), (-1, frame.out)], 0)


def at_work(frame: Frame) -> Piece:
    """Slab that the item at work takes when its window ends; in the turn the whole block."""
    piece = Piece()
    for w in range(frame.windows):
        row = _turn(frame) if w == frame.groups else _working(frame, w)
        piece.uses += [("slab", w, by, x) for by, x in row]
    return piece


def _working(frame: Frame, w: int) -> Row:
    """MB of the item at work when the window ends: its gradient, and its parameters unless
    they are counted anyway; of none after the last backward."""
    terms, up = frame.terms, w < frame.groups
    if w > frame.ends:
        return []
    i = frame.window(w)[-1 if up else 0]
    shape = frame.shapes[i]
    row = frame.held_as(i, "streamed", "", shape.param_bytes / MB)
    if terms.plan:  # A spilled boundary is there while it is made, used and copied.
        row.append((3 * terms.microbatches * shape.in_bytes / MB, frame.items[i].spilled))
    if up:
        return row
    row += frame.held_as(i, "kept", "", shape.param_bytes / MB)
    size = shape.grad_bytes / MB
    if not terms.plan:
        return [*row, (size, ONE)]
    if not frame.noted:
        row += frame.held_as(i, "", "device-streamed", shape.state_bytes / MB)
    return [*row, (size, ONE), *frame.block(i, -size)]


def _turn(frame: Frame) -> Row:
    """MB of the block's gradients, all at once, and of the boundaries in it."""
    row: Row = []
    for i, shape in enumerate(frame.shapes):
        row += frame.block(i, shape.grad_bytes / MB)
        if frame.terms.microbatches > 1:
            row.append((shape.in_bytes / MB, frame.items[i].inside))
    return row
