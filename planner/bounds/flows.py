"""The flows of the load program: what one group of items puts into links, windows and memory.

Of a group g, in MB or in ms, by the window w in which it happens (`windows` has them):

    load_w      parameters in, for F_g; from B_g on, around the end of the round, to F_g
    reload_w    parameters in again, for B_g; from F_g to B_g
    spill_w     gradients out, update_w  their updates on the host; from B_g to F_g
    in_w, out_w, done_w                  the sums of load, spill and update from B_g to w
"""

from collections.abc import Mapping, Sequence

from planner.bounds.frame import Delay, Frame
from planner.bounds.rows import MB, MS, ONE, Resource, Row, amount
from planner.shards import ShardCost

_FAR = 3  # windows around its backward in which a plan moves a shard's state
_TIMED = 6  # items of a window for which a bound says when they compute
_STREAMS = "device-streamed"

Flow = dict[int, int]  # a column for each of some windows


def parameters(frame: Frame, g: int) -> None:
    """A group's parameters, gradients and updates on the host.

    sum load = kept + streamed      sum reload = streamed      sum spill = gradients
    sum update = what they take     for every w: `_in_turn`
    """
    moving = [i for i in frame.members(g) if frame.moves(i)]
    if not moving:
        return
    later, mid = _to_forward(frame, g), range(g, frame.backward(g) + 1)
    early = range(frame.backward(g), frame.norms) if frame.noted else ()
    load, reload, spill = (_flow(frame, windows) for windows in (later, mid, later))
    update = _flow(frame, [w for w in later if w not in early])  # none before all norms are there
    kept = frame.named(frame.held(moving, "param_bytes", "", "kept"))
    streamed = frame.named(frame.held(moving, "param_bytes", "", "streamed"))
    grads = frame.named(frame.held(moving, "grad_bytes", "host"))
    by, trained = frame.terms.load_weight, [i for i in moving if frame.shapes[i].grad_bytes]
    work = frame.held(trained, "update_host_us", "host")
    flows: list[tuple[Resource, float, Flow, Row]] = [
        ("h2d", by, load, [(1, kept), (1, streamed)]),
        ("h2d", by, reload, [(1, streamed)]),
        ("d2h", 1.0, spill, [(1, grads)]),
        ("host_us", 1.0, update, work),
    ]
    for resource, weight, flow, whole in flows:
        frame.equal([*((1, x) for x in flow.values()), *_less(whole)])
        for w, x in flow.items():
            frame.use(resource, [w], [(weight, x)])
    _in_turn(frame, g, moving, (load, spill, update), grads)
    if not frame.terms.plan:
        _late_in_block(frame, g, moving, (load, spill, update))
        _parameters_in_time(frame, g, reload, spill)
    stock = kept  # and what came in again until then
    late = [x for w, x in load.items() if g < w <= frame.turn[0]]
    for w in mid[:-1]:
        stock = frame.named([(1, stock), (1, reload[w])])
        frame.use("slab", [w], [(1, stock), *((-1, x) for x in late[w - g :])])


def _parameters_in_time(frame: Frame, g: int, reload: Flow, spill: Flow) -> None:
    """Rows: backwards wait for parameters that come in again, gradients leave behind backwards."""
    items, down = frame.members(g)[::-1], frame.backward(g)
    params = {i: frame.held([i], "param_bytes", "", "streamed") for i in items}
    _comes(frame, down, params, [(1, x) for w, x in reload.items() if w != down])
    if not frame.noted:
        grads = {i: frame.held([i], "grad_bytes", "host") for i in items}
        _leaves(frame, down, grads, [(1, spill[down])])


def _late_in_block(frame: Frame, g: int, moving: Sequence[int], flows: tuple[Flow, ...]) -> None:
    """Rows: only what is in the block comes, leaves or is updated behind the group's window F."""
    whats = ("param_bytes", "grad_bytes", "update_host_us")
    rates = frame.terms.h2d, frame.terms.d2h, None  # updates are in ms already
    for flow, what, rate, late in zip(flows, whats, rates, frame.late, strict=True):
        row: Row = [(1, x) for w, x in flow.items() if g < w <= frame.turn[0]]
        inside = [x for i in moving for x in frame.block(i, amount(frame.shapes[i], what))]
        frame.at_most([*row, *_less(inside)])
        late[g] = _ms(row, rate) if rate else row


def _comes(frame: Frame, w: int, needs: Mapping[int, Row], before: Row) -> None:
    """Rows: an item of a window computes once what it needs has come.

    us_w >= compute_w from an item on + (what items up to it need - what came before w) / h2d rate
    """
    items, row = list(needs), _less(before)
    for at, i in enumerate(items):
        row = [*row, *needs[i]]
        if at % _apart(items) == 0 and any(by for by, _ in needs[i]):
            frame.delays.append(Delay(w, items[at:], _ms(row, frame.terms.h2d)))


def _leaves(frame: Frame, w: int, makes: Mapping[int, Row], gone: Row) -> None:
    """Rows: what an item of a window makes leaves once it has computed.

    us_w >= compute_w up to an item + (what leaves in w - what items before it make) / d2h rate
    """
    items, row = list(makes), gone
    for at, i in enumerate(items):
        if (len(items) - at - 1) % _apart(items) == 0 and any(by for by, _ in makes[i]):
            frame.delays.append(Delay(w, items[: at + 1], _ms(row, frame.terms.d2h)))
        row = [*row, *_less(makes[i])]


def _apart(items: Sequence[int]) -> int:
    """The distance between the items of a window that get such rows, of which there are few."""
    return -(-len(items) // _TIMED)


def _ms(row: Row, rate: int) -> Row:
    """ms in which a link with so many bytes per second carries a row in MB."""
    return [(by * MB * 1e6 / MS / rate, x) for by, x in row]


def _in_turn(
    frame: Frame, g: int, moving: Sequence[int], flows: tuple[Flow, ...], grads: int
) -> None:
    """Parameters follow updates, which follow gradients; what waits in between holds memory.

    done_w <= ms per MB of gradients * out_w       in_w <= MB of parameters per ms * done_w + free_w
    in_w <= MB of parameters per MB of gradients * out_w + free_w
    slab_w holds in_w + grads - out_w              the host holds out_w - (MB per ms) * done_w

    free_w: what has no gradients, and from its update on what is updated on the device.
    """
    trained = [frame.shapes[i] for i in moving if frame.shapes[i].grad_bytes]
    if not trained:
        return
    load, spill, update = flows
    frozen = [i for i in moving if not frame.shapes[i].grad_bytes]
    still = frame.held(frozen, "param_bytes", "", "kept", "streamed")
    free: Row = [(-1, frame.named(still))] if still else []
    evicted = frame.named(frame.held(moving, "param_bytes", _STREAMS, "kept", "streamed"))
    params_per_grad = _most(trained, "param_bytes", "grad_bytes")
    ms_per_grad = _most(trained, "update_host_us", "grad_bytes")
    if take_time := all(shape.update_host_us for shape in trained):
        params_per_ms = _most(trained, "param_bytes", "update_host_us")
        grads_per_ms = _most(trained, "grad_bytes", "update_host_us")
    if not frame.terms.plan:
        _last_to_leave(frame, g, spill[frame.backward(g)], grads)
    into = out = done = None
    early = range(frame.backward(g), frame.updated(g))  # for updates on the device
    for w in list(load)[:-1]:
        into = _sum(frame, into, load[w])
        out = _sum(frame, out, spill[w])
        there: Row = [] if g <= w <= frame.turn[0] else [(1, into)]  # else in stock
        frame.use("slab", [w], [*there, (1, grads), (-1, out)])
        allowed: Row = free if w in early else [*free, (-1, evicted)]
        frame.at_most([(1, into), (-params_per_grad, out), *allowed])
        if w in update:
            done = _sum(frame, done, update[w])
        if done is not None:
            frame.at_most([(1, done), (-ms_per_grad, out)])
        if take_time:
            known: Row = [] if done is None else [(1, done)]
            frame.at_most([(1, into), *_less(known, params_per_ms), *allowed])
            frame.use("host_bytes", [w], [(1, out), *_less(known, grads_per_ms)])


def _last_to_leave(frame: Frame, g: int, out: int, grads: int) -> None:
    """The gradient of the group's last item is there when its backward ends; until the window does
    it may leave while norms are noted, be it as a part of a shard of all items above.

    out <= grads - gradient + d2h rate * ms of norms
    """
    last = frame.members(g)[0]
    norms_us = sum(shape.norm_us for shape in frame.shapes[last:])
    own = frame.held([last], "grad_bytes", "host")
    frame.at_most([(1, out), (-1, grads), *own], norms_us * frame.terms.d2h / 1e6 / MB)


def _most(items: Sequence[ShardCost], what: str, per: str) -> float:
    """The most that any item has of a cost for each MB or ms of another."""
    return max(amount(shape, what) / amount(shape, per) for shape in items)


def _less(row: Row, by: float = 1) -> Row:
    """The row to be taken away, so many times."""
    return [(-by * factor, x) for factor, x in row]


def _to_forward(frame: Frame, g: int) -> list[int]:
    """The windows from B_g to F_g of the next round; in a bound to the turn, in which the block
    goes forward."""
    count, last = frame.windows, g if frame.terms.plan else frame.turn[0]
    return [w % count for w in range(frame.backward(g), count + last + 1)]


def _flow(frame: Frame, windows: Sequence[int]) -> Flow:
    return {w: frame.new() for w in windows}


def _sum(frame: Frame, so_far: int | None, more: int) -> int:
    """A column equal to the sum so far and more."""
    return frame.named([(1, so_far), (1, more)]) if so_far is not None else more


def states(frame: Frame, g: int) -> None:
    """State that streams comes in until its update on the device and leaves from then on, and
    parameters with it, and holds memory meanwhile; in a plan not long before and after."""
    state = frame.held(frame.members(g), "state_bytes", _STREAMS)
    leaving = frame.held(frame.members(g), "param_out_bytes", _STREAMS, "kept", "streamed")
    if not state and not leaving:
        return
    whole = frame.named([*state, *leaving])
    reach = _FAR if frame.terms.plan else frame.windows - 1
    down, count = frame.updated(g), frame.windows
    before = [(down - n) % count for n in range(reach, -1, -1)]
    after = [(down + n) % count for n in range(reach + 1)]
    into, out = _crossed(frame, "h2d", before), _crossed(frame, "d2h", after)
    frame.equal([(1, into[-1]), *_less(state)])
    frame.equal([(1, out[-1]), (-1, whole)])
    for w, there in zip(before[:-1], into[:-1], strict=True):
        frame.use("slab", [w], [(1, there)])
    if not (frame.terms.plan or frame.noted):
        _states_in_time(frame, g, out[0], whole)
    first = 0 if frame.terms.plan else 1  # when its parameters still count as those at work
    for w, gone in list(zip(after, out, strict=True))[first:]:
        frame.use("slab", [w], [(1, whole), (-1, gone)])


def _states_in_time(frame: Frame, g: int, out: int, whole: int) -> None:
    """Rows: state leaves behind updates, as parameters do; where the group's last item begins a
    shard, all of both that has not left is there when its backward ends, the item's too."""
    w, last, makes = frame.backward(g), frame.members(g)[0], dict[int, Row]()
    for i in frame.members(g)[::-1]:
        params = frame.held([i], "param_out_bytes", _STREAMS, "kept", "streamed")
        makes[i] = [*frame.held([i], "state_bytes", _STREAMS), *params]
    _leaves(frame, w, makes, [(1, out)])
    frame.at_most([(1, out), (-1, whole), *makes[last]])
    there, most = frame.new(), sum(amount(frame.shapes[i], "state_bytes") for i in makes)
    at_work = frame.held([last], "param_out_bytes", _STREAMS, "kept", "streamed")
    begins = (most, frame.items[last].cut) if last else (most, ONE)
    frame.at_most([(1, whole), (-1, out), *_less(at_work), begins, (-1, there)], most)
    frame.use("slab", [w], [(1, there)])


def aside(frame: Frame, g: int) -> None:
    """Activations and boundaries of the group offloaded between its forward and its backward.

    A plan moves them at once, through buffers for two microbatches of two shards.
    """
    count, sizes = frame.terms.microbatches, Row()
    for i in frame.members(g):
        shape, item = frame.shapes[i], frame.items[i]
        sizes.append((count * amount(shape, "offload_bytes"), item.packed))
        sizes.append((count * amount(shape, "in_bytes"), item.spilled))
    whole = frame.named(sizes)
    windows = range(g, frame.backward(g) + 1)
    near = max(1, min(2, len(windows) // 2)) if frame.terms.plan else len(windows)
    gone = dict(zip(windows[:near], _crossed(frame, "d2h", windows[:near]), strict=True))
    back = dict(zip(windows[-near:], _crossed(frame, "h2d", windows[-near:]), strict=True))
    out: Row = []
    for w in windows:
        out = [(1, gone[w])] if w in gone else out
        waits: Row = [*out, (-1, back[w])] if w in back else out
        if not frame.terms.plan:
            frame.at_most(_less(waits))
        if w == windows[-1]:
            break
        frame.use("host_bytes", [w], waits)
        frame.use("slab", [w], [(1, whole), *_less(waits)])
    for moved in (gone, back):
        frame.equal([(1, max(moved.items())[1]), (-1, whole)])


def _crossed(frame: Frame, link: Resource, windows: Sequence[int]) -> list[int]:
    """A flow over a link in these windows: columns of what has crossed it by the end of each."""
    sums: list[int] = []
    for w in windows:  # of few windows some come twice
        part = frame.new()
        frame.use(link, [w], [(1, part)])
        sums.append(_sum(frame, sums[-1] if sums else None, part))
    return sums
