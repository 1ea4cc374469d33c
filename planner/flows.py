"""The flows of the load program (`phases`): what one group puts into links, windows and memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.solver import Row, total

if TYPE_CHECKING:
    from planner.phases import Phases

MB = 1 << 20
MS = 1000
_FAR = 3  # windows around its backward in which a plan moves a shard's state


def flows(
    phases: "Phases", g: int, h2d: Sequence[Row], d2h: Sequence[Row], host: Sequence[Row]
) -> None:
    """What a group's parameters, gradients and updates put into windows and memory."""
    members = [(i, phases.shapes[i]) for i in phases.members(g)]
    moving = [(i, x) for i, x in members if phases.moves[i]]
    if not moving:
        return
    up, down, count = phases.forward(g), phases.backward(g), phases.windows
    later = [w % count for w in range(down, count + up + 1)]  # B_g .. F_g
    mid = list(range(up, down + 1))  # F_g .. B_g
    loads = {w: phases.var(f"i{g}_{w}") for w in later}
    again = {w: phases.var(f"j{g}_{w}") for w in mid}
    spills = {w: phases.var(f"s{g}_{w}") for w in later}
    early = range(down, phases.ends + 1) if phases.noted else ()  # no update has begun yet
    updates = {w: phases.var(f"u{g}_{w}") for w in later if w not in early}

    def held(params: str, update: str = "") -> Row:
        """MB of parameters held in these ways."""
        return [p for i, x in moving for p in phases.held_as(i, params, update, x.param_bytes / MB)]

    kept = phases.name(held("kept"), f"mk{g}")
    streamed = phases.name(held("streamed"), f"ms{g}")
    back = [*held("kept", "device-streamed"), *held("streamed", "device-streamed")]
    evicted = phases.name(back, f"me{g}")
    grads = phases.name(
        [p for i, x in moving for p in phases.held_as(i, "", "host", x.grad_bytes / MB)], f"mg{g}"
    )
    work = [p for i, x in moving for p in phases.held_as(i, "", "host", x.update_host_us / MS)]
    # What never changes may come in without an update.
    still = [
        (x.param_bytes / MB * by, y)
        for i, x in moving
        if not x.grad_bytes
        for by, y in [*phases.held_as(i, "kept"), *phases.held_as(i, "streamed")]
    ]
    frozen = phases.name(still, f"mf{g}") if still else 0
    _adds_up(phases, loads, [(1, kept), (1, streamed)])
    _adds_up(phases, again, [(1, streamed)])
    _adds_up(phases, spills, [(1, grads)])
    _adds_up(phases, updates, work)
    trained = [x for _, x in moving if x.grad_bytes]
    per_grad = max((x.update_host_us / MS / (x.grad_bytes / MB) for x in trained), default=0)
    slow = all(x.update_host_us for x in trained)
    per_update = max(
        (x.param_bytes / MB / (x.update_host_us / MS) for x in trained if slow), default=0
    )
    per_done = max(
        (x.grad_bytes / MB / (x.update_host_us / MS) for x in trained if slow), default=0
    )
    per_out = max((x.param_bytes / x.grad_bytes for x in trained), default=0)
    out, done, into = 0, 0, 0  # gradients out, updates done, parameters in so far
    for w in later:
        h2d[w].append((phases.terms.load_weight, loads[w]))
        d2h[w].append((1, spills[w]))
        free: Row = [*([] if w in early else [(-1, evicted)]), (-1, frozen)]
        if w in updates:
            host[w].append((1, updates[w]))
        if trained and w != up:
            out = phases.name([(1, out), (1, spills[w])], f"c{g}_{w}_0")
            done = phases.name([(1, done), (1, updates.get(w, 0))], f"c{g}_{w}_1")
            into = phases.name([(1, into), (1, loads[w])], f"c{g}_{w}_2")
            phases.most([(1, done), (-per_grad, out)], 0)
            if slow:
                phases.most([(1, into), (-per_update, done), *free], 0)
            phases.most([(1, into), (-per_out, out), *free], 0)
            phases.slab[w] += [(1, into), (1, grads), (-1, out)]
            if slow:
                phases.host[w] += [(1, out), (-per_done, done)]
    stock: Any = kept
    for w in mid:
        h2d[w].append((phases.terms.load_weight, again[w]))
        if w != down:
            stock = phases.name([(1, stock), (1, again[w])], f"k{g}_{w}")
            phases.slab[w].append((1, stock))


def _adds_up(phases: "Phases", parts: dict[int, Any], whole: Row) -> None:
    row = [(1, part) for part in parts.values()]
    phases.model += total([*row, *((-by, x) for by, x in whole)]) == 0


def states(phases: "Phases", g: int, h2d: Sequence[Row], d2h: Sequence[Row]) -> None:
    """State updated on the device comes in until its update and leaves from then on, and
    parameters with it; in a plan not long before and after."""
    items = [(i, phases.shapes[i]) for i in phases.members(g)]
    streams = "device-streamed"
    states: Row = [p for i, x in items for p in phases.held_as(i, "", streams, x.state_bytes / MB)]
    leaving: Row = [
        p
        for i, x in items
        for params in ("kept", "streamed")
        for p in phases.held_as(i, params, streams, x.param_out_bytes / MB)
    ]
    if not states and not leaving:
        return
    whole = phases.name([*states, *leaving], f"zw{g}")
    reach = _FAR if phases.terms.plan else phases.windows - 1
    down, count = phases.updated(g), phases.windows
    before = [(down - n) % count for n in range(reach, -1, -1)]
    after = [(down + n) % count for n in range(reach + 1)]
    into, out = spread(phases, before, h2d, f"zi{g}"), spread(phases, after, d2h, f"zo{g}")
    if phases.terms.plan:
        for there, w in zip(into[:-1], before[:-1], strict=True):
            phases.slab[w].append((1, there))
        for gone, w in zip(out, after, strict=True):
            phases.slab[w] += [(1, whole), (-1, gone)]
    phases.model += total([(1, into[-1]), *((-by, x) for by, x in states)]) == 0
    phases.model += total([(1, out[-1]), (-1, whole)]) == 0


def aside(phases: "Phases", g: int, h2d: Sequence[Row], d2h: Sequence[Row]) -> None:
    """What is put aside on the host from F_g to B_g: packed activations, boundaries.

    A plan moves it at once, through buffers for two microbatches of two shards.
    """
    up, down, count = phases.forward(g), phases.backward(g), phases.terms.microbatches
    sizes: Row = []
    for i in phases.members(g):
        item = phases.shapes[i]
        sizes.append((count * (item.offload_bytes or 0) / MB, phases.packed[i]))
        sizes.append((count * item.in_bytes / MB, phases.spilled[i]))
    if all(isinstance(x, int) for _, x in sizes):
        return
    whole = phases.name(sizes, f"pw{g}")
    windows = list(range(up, down + 1))
    near = max(1, min(2, len(windows) // 2)) if phases.terms.plan else len(windows)
    gone: Any = 0
    back: Any = 0
    for w in windows:
        if w < up + near:
            out = phases.var(f"p{g}_{w}")
            d2h[w].append((1, out))
            gone = phases.name([(1, gone), (1, out)], f"pc{g}_{w}")
        if w > down - near:
            into = phases.var(f"q{g}_{w}")
            h2d[w].append((1, into))
            back = phases.name([(1, back), (1, into)], f"qc{g}_{w}")
        if w != down:
            phases.host[w] += [(1, gone), (-1, back)]
        if not phases.terms.plan:
            phases.most([(1, back), (-1, gone)], 0)
            if w != down:
                phases.slab[w] += [(1, whole), (-1, gone), (1, back)]
    for moved in (gone, back):
        phases.model += total([(1, moved), (-1, whole)]) == 0


def spread(phases: "Phases", windows: Sequence[int], link: Sequence[Row], name: str) -> list[Any]:
    """A flow over a link in these windows: what has crossed it by the end of each."""
    sums: list[Any] = []
    for w in windows:
        part = phases.var(f"{name}_{w}")
        link[w].append((1, part))
        sums.append(phases.name([(1, sums[-1] if sums else 0), (1, part)], f"{name}c_{w}"))
    return sums
