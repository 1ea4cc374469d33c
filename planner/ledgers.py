"""The memory of the load program (`phases`): boundaries, graphs, slab and reserve.

Slab and reserve are parts of the device's memory that do not change during a round. In the slab
are parameters, gradients, state in flight and boundaries; in the reserve live graphs and what the
op at work takes.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from planner.flows import MB
from planner.solver import Row

if TYPE_CHECKING:
    from planner.phases import Phases


def boundaries(phases: "Phases") -> None:
    """Where shards begin, the boundary before them waits for its backward: in the slab, on the
    host, or (inside the block) for one microbatch only.

    A bound decides where that is; in a plan every item is a shard.
    """
    terms, part = phases.terms, phases.part
    for i, item in enumerate(phases.shapes):
        there = i > 0
        cut: Any = (1 if terms.plan else phases.var(f"c{i}")) if there else 0
        phases.cut.append(cut)
        phases.kept.append(phases.var(f"b{i}") if there else 0)
        known, may = phases.fixed[i], there and i < part.high
        spilled: Any = phases.var(f"x{i}") if may else 0
        phases.spilled.append(int(known.spilled) if known else spilled)
        phases.inside.append(phases.var(f"e{i}") if i > part.low else 0)
        if not there or not item.in_bytes:
            continue
        ways: Row = [(-1, x[i]) for x in (phases.kept, phases.spilled, phases.inside)]
        phases.most([(1, cut), *ways], 0)
        if i >= part.low:  # all microbatches wait before the block
            phases.most([*phases.block(i), *phases.block(i - 1, -1), (-1, phases.kept[i])], 0)
        if i > part.low:
            phases.most([(1, phases.inside[i]), *phases.block(i - 1, -1)], 0)
        if i < part.high:
            rest = [*phases.block(i), (1, phases.saved[i])]
            phases.most([(1, phases.spilled[i]), *rest], 1)
    if not terms.plan:
        _covers(phases)


def _covers(phases: "Phases") -> None:
    """No shard that recomputes is longer than its transients may be: wherever one would be, it is
    cut, or something of it is not recomputed."""
    items, costs, most = phases.terms.items, phases.terms.costs, phases.part.most
    windows: list[tuple[int, int]] = []
    end = 0
    for i in range(len(items)):
        end = max(end, i)
        while end < len(items) and costs.backward_transient(items[i][0], items[end][1]) <= most:
            end += 1
        if end == len(items):
            break
        windows.append((i, end))
    # Of windows with the same end the shortest says all.
    windows = [a for a, b in pairwise([*windows, (0, -1)]) if a[1] != b[1]]
    if not windows:
        return
    sums: list[Any] = [0]
    for i in range(windows[-1][1] + 1):
        ways = [*phases.graph(i), (1, phases.once[i]), (1, phases.cut[i])]
        sums.append(phases.name([(1, sums[-1]), *ways], f"w{i}"))
    for first, last in windows:
        row: Row = [(-1, sums[last + 1]), (1, sums[first]), (1, phases.cut[first])]
        phases.most(row, -1)


def graphs(phases: "Phases", g: int) -> None:
    """Graphs and boundaries live from a group's forward to its backward, gradients of the block
    from the turn on."""
    terms, members = phases.terms, list(phases.members(g))
    count = terms.microbatches
    alive: Row = [(count * phases.shapes[i].saved_bytes / MB, phases.saved[i]) for i in members]
    held: Row = [(count * phases.shapes[i].in_bytes / MB, phases.kept[i]) for i in members]
    sums = phases.name(alive, f"ga{g}"), phases.name(held, f"gb{g}")
    for w in range(phases.forward(g), phases.backward(g)):
        phases.reserve[w].append((1, sums[0]))
        phases.slab[w].append((1, sums[1]))
    if count > 1:
        summed = [p for i in members for p in phases.block(i, phases.shapes[i].grad_bytes / MB)]
        grads = phases.name(summed, f"gg{g}")
        for w in range(phases.groups + 1, phases.backward(g)):
            phases.slab[w].append((1, grads))


def waiting(phases: "Phases", g: int) -> None:
    """Gradients wait on the device for updates there, and in a plan the parameters beside them
    unless they are there anyway."""
    waits = range(phases.backward(g) + 1, phases.updated(g))
    if not waits:
        return
    row: Row = []
    for i in phases.members(g):
        item = phases.shapes[i]
        row += phases.on_device(i, item.grad_bytes / MB)
        for params in ("kept", "streamed") if phases.terms.plan else ():
            row += phases.held_as(i, params, "device-streamed", item.param_bytes / MB)
    held = phases.name(row, f"wg{g}")
    for w in waits:
        phases.slab[w].append((1, held))


def limits(phases: "Phases") -> None:
    """Memory rows: slab, reserve and host hold what a plan needs at least."""
    slab, reserve = phases.var("slab"), phases.var("reserve")
    phases.most([(1, slab), (1, reserve)], phases.terms.room_bytes / MB)
    phases.most([(-1, reserve)], -phases.part.least / MB)
    below: Any = 0
    for i, item in enumerate(phases.shapes):
        # When an item's backward begins, the graphs of all items below it are alive.
        count, size = phases.terms.microbatches, item.saved_bytes / MB
        again, alone = item.backward_transient_bytes / MB, item.graph_transient_bytes / MB
        needs: Row = [
            (again, 1),
            (count * size + alone - again, phases.saved[i]),
            (alone - again, phases.packed[i]),
            (min(size + alone, again) - again, phases.once[i]),
        ]
        phases.most([(1, below), *needs, (-1, reserve)], 0)
        own: Row = [(count * size, phases.saved[i]), (size, phases.once[i])]
        below = phases.name([(1, below), *own], f"g{i}")
    if phases.terms.host_bytes is not None:
        _host(phases, phases.terms.host_bytes)
    always = phases.name(_always(phases), "always")
    for w in range(phases.windows):
        held = _turn(phases) if w == phases.groups else _at_work(phases, w)
        if phases.reserve[w]:
            phases.most([*phases.reserve[w], (-1, reserve)], 0)
        phases.most([*phases.slab[w], (1, always), *held, (-1, slab)], 0)


def _host(phases: "Phases", room: int) -> None:
    """What waits on the host, in a plan with one whole gradient on its way."""
    spare: Any = phases.var("grads") if phases.terms.plan else 0
    for i, item in enumerate(phases.shapes if phases.terms.plan else ()):
        phases.most([*phases.held_as(i, "", "host", item.grad_bytes / MB), (-1, spare)], 0)
    for held in phases.host:
        phases.most([*held, (1, spare)], room / MB)


def _always(phases: "Phases") -> Row:
    """MB that are there all round: resident parameters and state; in a plan buffers for packing,
    and copies in flight: whole ones, however small the part of each shard that moves is."""
    terms = phases.terms
    row: Row = []
    for i, item in enumerate(phases.shapes):
        row += phases.held_as(i, "resident", "", item.param_bytes / MB)
        row += phases.held_as(i, "", "device", item.state_bytes / MB)
    if not terms.plan:
        return row
    if terms.offload:  # for two microbatches of two shards
        largest = max(item.offload_bytes or 0 for item in phases.shapes) / MB
        row.append((2 * min(2, terms.microbatches) * largest, 1))
    into, out = phases.var("into"), phases.var("out")
    row += [(1, into), (1, out)]
    spare, count = 0 if terms.tight else 1 / MB, len(phases.shapes)
    phases.most([(-1, into)], -spare * sum(item.param_bytes for item in phases.shapes) / count)
    phases.most([(-1, out)], -spare * sum(item.grad_bytes for item in phases.shapes) / count)
    for i, item in enumerate(phases.shapes):
        param, state, grad = item.param_bytes / MB, item.state_bytes / MB, item.grad_bytes / MB
        moved = phases.held_as(i, "streamed", "", param) + phases.held_as(i, "kept", "", param)
        phases.most([*moved, (-1, into)], 0)
        streams = phases.held_as(i, "", "device-streamed", state)
        phases.most([*streams, (-1, into)], 0)
        phases.most([*streams, *phases.held_as(i, "", "host", grad), (-1, out)], 0)
    return row


def _at_work(phases: "Phases", w: int) -> Row:
    """MB of the item at work when the window ends: its gradient, and its parameters unless
    they are counted anyway; of none after the last backward."""
    terms, up = phases.terms, w < phases.groups
    if w > phases.ends:
        return []
    i = phases.window(w)[-1 if up else 0]
    item = phases.shapes[i]
    row = phases.held_as(i, "streamed", "", item.param_bytes / MB)
    if terms.plan:  # A spilled boundary is there while it is made, used and copied.
        row.append((3 * terms.microbatches * item.in_bytes / MB, phases.spilled[i]))
    if up:
        return row
    row += phases.held_as(i, "kept", "", item.param_bytes / MB)
    size = item.grad_bytes / MB
    if not terms.plan:
        return [*row, (size, 1)]
    if not phases.noted:
        row += phases.held_as(i, "", "device-streamed", item.state_bytes / MB)
    return [*row, (size, 1), *phases.block(i, -size)]


def _turn(phases: "Phases") -> Row:
    """MB of the block's gradients, all at once, and of the boundaries in it."""
    row: Row = []
    for i, item in enumerate(phases.shapes):
        row += phases.block(i, item.grad_bytes / MB)
        if phases.terms.microbatches > 1:
            row.append((item.in_bytes / MB, phases.inside[i]))
    return row
