"""The memory of the load program (`windows`): boundaries, graphs, slab and reserve.

Slab and reserve are parts of the device's memory that do not change during a round. In the slab
are parameters, gradients, state in flight and boundaries; in the reserve live graphs and what the
op at work takes.
"""

from collections.abc import Iterator
from itertools import pairwise

from planner.bounds.frame import Frame
from planner.bounds.rows import INFINITY, ONE, Constraint, PlanSubset, Row, amount

_STREAMS = "device-streamed"


def boundaries(frame: Frame) -> None:
    """Where shards begin, the boundary before them waits for its backward: in the slab, on the
    host, or (inside the block) for one microbatch only.

    A bound decides where that is; in a plan every item is a shard.
    """
    for i, (shape, item) in enumerate(zip(frame.shapes, frame.items, strict=True)):
        if not i or not shape.in_bytes:
            continue
        below, own = frame.block(i - 1, -1), frame.block(i)
        frame.at_most([(1, item.cut), *((-1, x) for x in (item.kept, item.spilled, item.inside))])
        frame.at_most([*own, *below, (-1, item.kept)])  # all microbatches wait before the block
        frame.at_most([(1, item.inside), *below])
        frame.at_most([(1, item.spilled), *own, (1, item.saved)], 1)


def one_mode(frame: Frame) -> list[int]:
    """Items of a shard are treated alike: where two beside each other are not, a shard begins.
    Columns, for every item, of how many up to it begin one."""
    sums = [frame.new()]
    frame.at_most([(1, sums[0])])
    for before, item in pairwise([frame.items[0], *frame.items]):
        sums.append(frame.named([(1, sums[-1]), (1, item.cut)]))
        for one in ("saved", "packed"):
            ways = getattr(item, one), getattr(before, one)
            for own, other in (ways, ways[::-1]) if item is not before else ():
                frame.at_most([(1, own), (-1, other), (-1, item.cut)])
    return sums


def covers(frame: Frame, sums: list[int], part: PlanSubset) -> Iterator[Constraint]:
    """No shard that recomputes is longer than its transients may be in this part of the plans:
    wherever one would be, it is cut, or does not recompute, neither its first item nor its last."""
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
            for i in dict.fromkeys((first, last)):
                cuts: Row = [(-1, sums[last + 1]), (1, sums[first + 1])]
                ways = [*frame.graph(i, -1), (-1, frame.items[i].once)]
                yield Constraint([*cuts, *ways], -INFINITY, -1)


def graphs(frame: Frame, g: int) -> None:
    """Graphs and boundaries live from a group's forward to its backward, gradients of the block
    from the turn on."""
    members, count = frame.members(g), frame.terms.microbatches
    alive, held, grads = Row(), Row(), Row()
    for i in members:
        shape, item = frame.shapes[i], frame.items[i]
        alive.append((count * amount(shape, "saved_bytes"), item.saved))
        held.append((count * amount(shape, "in_bytes"), item.kept))
        grads += frame.block(i, amount(shape, "grad_bytes"))
    between = range(g, frame.backward(g))
    frame.use("reserve", between, [(1, frame.named(alive))])
    frame.use("slab", between, [(1, frame.named(held))])
    if count > 1:
        after = range(frame.turn[-1] + 1, frame.backward(g))
        frame.use("slab", after, [(1, frame.named(grads))])


def waiting(frame: Frame, g: int) -> None:
    """Gradients wait on the device for updates there, and in a plan the parameters beside them
    unless they are there anyway."""
    waits, members = range(frame.backward(g) + 1, frame.updated(g)), frame.members(g)
    if not waits:
        return
    row = frame.on_device(members, "grad_bytes")
    if frame.terms.plan:
        row += frame.held(members, "param_bytes", _STREAMS, "kept", "streamed")
    frame.use("slab", waits, [(1, frame.named(row))])


def reserve(frame: Frame) -> None:
    """Graphs alive and what an op takes are within the reserve, whichever item is at work."""
    below, count = Row(), frame.terms.microbatches
    for shape, item in zip(frame.shapes, frame.items, strict=True):
        # When an item's backward begins, the graphs of all items below it are alive.
        size, again = amount(shape, "saved_bytes"), amount(shape, "backward_transient_bytes")
        alone = amount(shape, "graph_transient_bytes")
        needs: Row = [
            (again, ONE),
            (count * size + alone - again, item.saved),
            (alone - again, item.packed),
            (min(size + alone, again) - again, item.once),
        ]
        frame.at_most([*below, *needs, (-1, frame.reserve)])
        own: Row = [(count * size, item.saved), (size, item.once)]
        below = [(1, frame.named([*below, *own]))]


def on_host(frame: Frame) -> None:
    """In a plan one whole gradient is on its way to what waits on the host."""
    if frame.terms.plan:
        spare = frame.new()
        for i in range(len(frame.items)):
            frame.at_most([*frame.held([i], "grad_bytes", "host"), (-1, spare)])
        frame.use("host_bytes", range(frame.windows), [(1, spare)])


def all_round(frame: Frame) -> None:
    """Slab that is taken all round: resident parameters and state. In a plan also copies in flight,
    whole ones however small the part of a shard that moves is, and buffers for packing; none of
    them in a turn of several microbatches, when nothing has to move."""
    terms, every, moving = frame.terms, range(len(frame.items)), Row()
    row = frame.held(every, "param_bytes", "", "resident")
    row += frame.held(every, "state_bytes", "device")
    frame.use("slab", range(frame.windows), [(1, frame.named(row))])
    if terms.plan:
        moving += [(1, frame.into), (1, frame.out)]
        for i in every:
            _in_flight(frame, i)
    if terms.plan and terms.offload:  # for two microbatches
        largest = max((amount(shape, "offload_bytes") for shape in frame.shapes[:-1]), default=0.0)
        moving.append((min(2, terms.microbatches) * largest, ONE))
    turn = frame.turn if len(frame.turn) > 1 else ()
    away = (w for w in range(frame.windows) if w not in turn)
    frame.use("slab", away, moving)


def _in_flight(frame: Frame, i: int) -> None:
    """Copies of a shard in each direction fit the room that the slab has for them."""
    moved = frame.held([i], "param_bytes", "", "streamed", "kept")
    streams = frame.held([i], "state_bytes", _STREAMS)
    frame.at_most([*moved, (-1, frame.into)])
    frame.at_most([*streams, (-1, frame.into)])
    frame.at_most([*streams, *frame.held([i], "grad_bytes", "host"), (-1, frame.out)])


def at_work(frame: Frame) -> None:
    """Slab that the item at work takes when its window ends; in the turn the whole block."""
    for w in range(frame.windows):
        if items := frame.window(w):
            up = w < frame.groups
            frame.use("slab", [w], _working(frame, items[-1 if up else 0], up=up))
        elif w in frame.turn:
            frame.use("slab", [w], _turn(frame, ends=w == frame.turn[-1]))


def _working(frame: Frame, i: int, *, up: bool) -> Row:
    """MB of the item at work when the window ends: its gradient and its parameters, unless they
    are counted anyway."""
    terms, shape = frame.terms, frame.shapes[i]
    row = frame.held([i], "param_bytes", "", "streamed")
    if terms.plan:  # A spilled boundary is there while it is made, used and copied.
        row.append((3 * terms.microbatches * amount(shape, "in_bytes"), frame.items[i].spilled))
    if up:
        return row
    row += frame.held([i], "param_bytes", "", "kept")
    if not terms.plan:
        return row + frame.on_device([i], "grad_bytes")  # one that leaves is in its flow
    row.append((amount(shape, "grad_bytes"), ONE))
    if not frame.noted:
        row += frame.held([i], "state_bytes", _STREAMS)
    return row + frame.block(i, -amount(shape, "grad_bytes"))


def _turn(frame: Frame, *, ends: bool) -> Row:
    """MB of the block's gradients, all at once, and of the boundaries in it when the turn ends."""
    row: Row = []
    for i, (shape, item) in enumerate(zip(frame.shapes, frame.items, strict=True)):
        row += frame.block(i, amount(shape, "grad_bytes"))
        if ends and frame.terms.microbatches > 1:
            row.append((amount(shape, "in_bytes"), item.inside))
    return row
