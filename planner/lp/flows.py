"""The flows of the load program: what one group of items puts into links, windows and memory.

Of a group g, in MB or in ms, by the window w in which it happens (`windows` has them):

    load_w      parameters in, for F_g; from B_g on, around the end of the round, to F_g
    reload_w    parameters in again, for B_g; from F_g to B_g
    spill_w     gradients out, update_w  their updates on the host; from B_g to F_g
    in_w, out_w, done_w                  the sums of load, spill and update from B_g to w
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.lp.frame import Frame
from planner.lp.rows import MB, MS, Piece, Resource, Row, at_most, equal
from planner.shards import ShardCost

_FAR = 3  # windows around its backward in which a plan moves a shard's state


def parameters(frame: Frame, g: int) -> Piece:
    """A group's parameters, gradients and updates on the host.

    sum load = kept + streamed      sum reload = streamed      sum spill = gradients
    sum update = what they take     for every w: `_in_turn`
    """
    piece = Piece()
    moving = [i for i in frame.members(g) if frame.moves(i)]
    if not moving:
        return piece
    later, mid = _from_backward(frame, g), range(frame.forward(g), frame.backward(g) + 1)
    early = range(frame.backward(g), frame.ends + 1) if frame.noted else ()
    load, reload = _flow(frame, later), _flow(frame, mid)
    spill = _flow(frame, later)
    update = _flow(frame, [w for w in later if w not in early])  # none before all norms are there
    kept = piece.named(_params(frame, moving, "kept"), frame.columns)
    streamed = piece.named(_params(frame, moving, "streamed"), frame.columns)
    grads = piece.named(_grads(frame, moving), frame.columns)
    work: Row = []
    for i in moving:
        work += frame.held_as(i, "", "host", frame.shapes[i].update_host_us / MS)
    totals: list[tuple[dict[int, int], Row]] = [
        (load, [(-1, kept), (-1, streamed)]),
        (reload, [(-1, streamed)]),
        (spill, [(-1, grads)]),
        (update, [(-by, x) for by, x in work]),
    ]
    for flow, whole in totals:
        piece.constraints.append(equal([*((1, x) for x in flow.values()), *whole]))
    carried: list[tuple[dict[int, int], Resource, float]] = [
        (load, "h2d", frame.terms.load_weight),
        (reload, "h2d", frame.terms.load_weight),
        (spill, "d2h", 1.0),
        (update, "host_us", 1.0),
    ]
    for flow, resource, by in carried:
        piece.uses += [(resource, w, by, x) for w, x in flow.items()]
    _in_turn(frame, g, piece, (load, spill, update), grads)
    stock = kept  # and what came in again until then
    for w in mid[:-1]:
        stock = piece.named([(1, stock), (1, reload[w])], frame.columns)
        piece.use("slab", [w], stock)
    return piece


def _in_turn(
    frame: Frame, g: int, piece: Piece, flows: tuple[dict[int, int], ...], grads: int
) -> None:
    """Parameters follow updates, which follow gradients; what waits in between holds memory.

    done_w <= ms per MB of gradients * out_w       in_w <= MB of parameters per ms * done_w + free_w
    in_w <= MB of parameters per MB of gradients * out_w + free_w
    slab_w holds in_w + grads - out_w              the host holds out_w - (MB per ms) * done_w

    free_w: what has no gradients, and from its update on what is updated on the device.
    """
    moving = [i for i in frame.members(g) if frame.moves(i)]
    trained = [frame.shapes[i] for i in moving if frame.shapes[i].grad_bytes]
    if not trained:
        return
    load, spill, update = flows
    frozen = [i for i in moving if not frame.shapes[i].grad_bytes]
    still = [*_params(frame, frozen, "kept"), *_params(frame, frozen, "streamed")]
    back = [
        x
        for params in ("kept", "streamed")
        for x in _params(frame, moving, params, "device-streamed")
    ]
    free = [(-1.0, piece.named(still, frame.columns))] if still else []
    evicted = piece.named(back, frame.columns)
    most = _Rates.of(trained)
    into = out = done = None
    for w in _from_backward(frame, g)[:-1]:
        into = _sum(piece, frame, into, load[w])
        out = _sum(piece, frame, out, spill[w])
        piece.use("slab", [w], into)
        piece.use("slab", [w], grads)
        piece.use("slab", [w], out, -1)
        allowed: Row = [*free, (-1, evicted)] if w in update else free
        piece.constraints.append(at_most([(1, into), (-most.params_per_grad, out), *allowed], 0))
        if w in update:
            done = _sum(piece, frame, done, update[w])
        if done is not None:
            piece.constraints.append(at_most([(1, done), (-most.ms_per_grad, out)], 0))
        if most.updates_take_time:
            known: Row = [] if done is None else [(1, done)]
            fresh = [(-most.params_per_ms * by, x) for by, x in known]
            piece.constraints.append(at_most([(1, into), *fresh, *allowed], 0))
            piece.use("host_bytes", [w], out)
            piece.uses += [("host_bytes", w, -most.grads_per_ms * by, x) for by, x in known]


@dataclass(frozen=True)
class _Rates:
    """The most that any item of a group has of one thing for each unit of another: MB, ms of
    updates on the host, which take time for all of the items or are left out."""

    params_per_grad: float
    ms_per_grad: float
    params_per_ms: float
    grads_per_ms: float
    updates_take_time: bool

    @classmethod
    def of(cls, items: Sequence[ShardCost]) -> "_Rates":
        slow = all(x.update_host_us for x in items)
        return cls(
            max(x.param_bytes / x.grad_bytes for x in items),
            max((x.update_host_us / MS) / (x.grad_bytes / MB) for x in items),
            max((x.param_bytes / MB) / (x.update_host_us / MS) for x in items) if slow else 0.0,
            max((x.grad_bytes / MB) / (x.update_host_us / MS) for x in items) if slow else 0.0,
            slow,
        )


def _from_backward(frame: Frame, g: int) -> list[int]:
    """The windows from B_g to F_g of the next round."""
    count = frame.windows
    return [w % count for w in range(frame.backward(g), count + frame.forward(g) + 1)]


def _flow(frame: Frame, windows: Sequence[int]) -> dict[int, int]:
    return {w: frame.columns.new() for w in windows}


def _sum(piece: Piece, frame: Frame, so_far: int | None, more: int) -> int:
    """A column equal to the sum so far and more."""
    return piece.named([(1, so_far), (1, more)], frame.columns) if so_far is not None else more


def _params(frame: Frame, items: Sequence[int], params: str, update: str = "") -> Row:
    """MB of parameters held in this way."""
    row: Row = []
    for i in items:
        row += frame.held_as(i, params, update, frame.shapes[i].param_bytes / MB)
    return row


def _grads(frame: Frame, items: Sequence[int]) -> Row:
    """MB of gradients updated on the host."""
    row: Row = []
    for i in items:
        row += frame.held_as(i, "", "host", frame.shapes[i].grad_bytes / MB)
    return row


def states(frame: Frame, g: int) -> Piece:
    """State that streams comes in until its update on the device and leaves from then on, and
    parameters with it; in a plan not long before and after."""
    piece, streams = Piece(), "device-streamed"
    state: Row = []
    leaving: Row = []
    for i in frame.members(g):
        shape = frame.shapes[i]
        state += frame.held_as(i, "", streams, shape.state_bytes / MB)
        for params in ("kept", "streamed"):
            leaving += frame.held_as(i, params, streams, shape.param_out_bytes / MB)
    if not state and not leaving:
        return piece
    whole = piece.named([*state, *leaving], frame.columns)
    reach = _FAR if frame.terms.plan else frame.windows - 1
    down, count = frame.updated(g), frame.windows
    before = [(down - n) % count for n in range(reach, -1, -1)]
    after = [(down + n) % count for n in range(reach + 1)]
    into, out = _crossed(frame, piece, "h2d", before), _crossed(frame, piece, "d2h", after)
    piece.constraints.append(equal([(1, into[-1]), *((-by, x) for by, x in state)]))
    piece.constraints.append(equal([(1, out[-1]), (-1, whole)]))
    if frame.terms.plan:
        for w, there in zip(before[:-1], into[:-1], strict=True):
            piece.use("slab", [w], there)
        for w, gone in zip(after, out, strict=True):
            piece.use("slab", [w], whole)
            piece.use("slab", [w], gone, -1)
    return piece


def aside(frame: Frame, g: int) -> Piece:
    """Activations and boundaries of the group offloaded between its forward and its backward.

    A plan moves them at once, through buffers for two microbatches of two shards.
    """
    piece, count = Piece(), frame.terms.microbatches
    sizes: Row = []
    for i in frame.members(g):
        shape = frame.shapes[i]
        sizes.append((count * (shape.offload_bytes or 0) / MB, frame.items[i].packed))
        sizes.append((count * shape.in_bytes / MB, frame.items[i].spilled))
    whole = piece.named(sizes, frame.columns)
    windows = range(frame.forward(g), frame.backward(g) + 1)
    near = max(1, min(2, len(windows) // 2)) if frame.terms.plan else len(windows)
    gone = dict(zip(windows[:near], _crossed(frame, piece, "d2h", windows[:near]), strict=True))
    back = dict(zip(windows[-near:], _crossed(frame, piece, "h2d", windows[-near:]), strict=True))
    out: Row = []
    for w in windows:
        out = [(1, gone[w])] if w in gone else out
        into: Row = [(-1, back[w])] if w in back else []
        if w != windows[-1]:
            piece.uses += [("host_bytes", w, by, x) for by, x in [*out, *into]]
        if not frame.terms.plan:
            piece.constraints.append(at_most([(-by, x) for by, x in [*out, *into]], 0))
            if w != windows[-1]:
                piece.use("slab", [w], whole)
                piece.uses += [("slab", w, -by, x) for by, x in [*out, *into]]
    for moved in (gone, back):
        piece.constraints.append(equal([(1, max(moved.items())[1]), (-1, whole)]))
    return piece


def _crossed(frame: Frame, piece: Piece, link: Resource, windows: Sequence[int]) -> list[int]:
    """A flow over a link in these windows: columns of what has crossed it by the end of each."""
    sums: list[int] = []
    for w in windows:  # of few windows some come twice
        part = frame.columns.new()
        piece.use(link, [w], part)
        sums.append(_sum(piece, frame, sums[-1] if sums else None, part))
    return sums
