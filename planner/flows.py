"""The flows of the load program (`phases`): what one group puts into links, windows and memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.solver import lp_sum

if TYPE_CHECKING:
    from planner.phases import Phases

MB = 1 << 20
MS = 1000


def flows(phases: "Phases", g: int, h2d: list[Any], d2h: list[Any], host: list[Any]) -> None:
    """What a group's parameters, gradients and updates put into windows and memory."""
    members = [(i, phases.terms.items[i]) for i in phases.members(g)]
    moving = [(i, x) for i, x in members if len(phases.held[i]) > 1]
    if not moving:
        return
    up, down, count = phases.forward(g), phases.backward(g), phases.windows
    later = [w % count for w in range(down, count + up + 1)]  # B_g .. F_g
    mid = list(range(up, down + 1))  # F_g .. B_g
    loads = {w: phases.var(f"i{g}_{w}") for w in later}
    again = {w: phases.var(f"j{g}_{w}") for w in mid}
    spills = {w: phases.var(f"s{g}_{w}") for w in later}
    updates = {w: phases.var(f"u{g}_{w}") for w in later}
    mb = [(i, x.param_bytes / MB) for i, x in moving]
    kept = lp_sum(size * phases.part(i, "kept") for i, size in mb)
    evicted = lp_sum(
        size
        * (
            phases.part(i, "kept", "device-streamed")
            + phases.part(i, "streamed", "device-streamed")
        )
        for i, size in mb
    )
    grads = lp_sum(x.grad_bytes / MB * phases.part(i, "", "host") for i, x in moving)
    # What never changes may come in without an update.
    frozen = lp_sum(
        size * (phases.part(i, "kept") + phases.part(i, "streamed"))
        for (i, x), (_, size) in zip(moving, mb, strict=True)
        if not x.grad_bytes
    )
    phases.model += lp_sum(loads.values()) == lp_sum(
        size * (phases.part(i, "kept") + phases.part(i, "streamed")) for i, size in mb
    )
    phases.model += lp_sum(again.values()) == lp_sum(
        size * phases.part(i, "streamed") for i, size in mb
    )
    phases.model += lp_sum(spills.values()) == grads
    phases.model += lp_sum(updates.values()) == lp_sum(
        x.update_host_us / MS * phases.part(i, "", "host") for i, x in moving
    )
    trained = [x for _, x in moving if x.grad_bytes]
    per_grad = max((x.update_host_us / MS / (x.grad_bytes / MB) for x in trained), default=0)
    slow = all(x.update_host_us for x in trained)
    per_update = max(
        (x.param_bytes / MB / (x.update_host_us / MS) for x in trained if slow), default=0
    )
    per_out = max((x.param_bytes / x.grad_bytes for x in trained), default=0)
    sums: list[Any] = [0, 0, 0]
    for w in later:
        sums = [sums[0] + spills[w], sums[1] + updates[w], sums[2] + loads[w]]
        h2d[w] += loads[w]
        d2h[w] += spills[w]
        host[w] = host[w] + updates[w]
        if trained and w != up:
            out, done, back = (phases.name(s, f"c{g}_{w}_{n}") for n, s in enumerate(sums))
            sums = [out, done, back]
            phases.model += done <= out * per_grad
            if slow:
                phases.model += back <= done * per_update + evicted + frozen
            phases.model += back <= out * per_out + evicted + frozen
            phases.slab[w] = phases.slab[w] + back + grads - out
    stock: Any = kept
    for w in mid:
        h2d[w] += again[w]
        stock = stock + again[w]
        if w != down:
            phases.slab[w] = phases.slab[w] + stock


def states(phases: "Phases", g: int, h2d: list[Any], d2h: list[Any]) -> None:
    """State updated on the device comes in until B_g and leaves from then on, and parameters
    with it; in a plan not long before and after."""
    items = [(i, phases.terms.items[i]) for i in phases.members(g)]
    states = lp_sum(x.state_bytes / MB * phases.part(i, "", "device-streamed") for i, x in items)
    evicted = lp_sum(
        x.param_bytes
        / MB
        * (
            phases.part(i, "kept", "device-streamed")
            + phases.part(i, "streamed", "device-streamed")
        )
        for i, x in items
    )
    reach = 3 if phases.terms.plan else phases.windows - 1
    down, count = phases.backward(g), phases.windows
    before = [(down - n) % count for n in range(reach, -1, -1)]
    after = [(down + n) % count for n in range(reach + 1)]
    into, out = spread(phases, before, h2d, f"zi{g}"), spread(phases, after, d2h, f"zo{g}")
    for there, w in zip(into, before, strict=True):
        if w != down and phases.terms.plan:
            phases.slab[w] = phases.slab[w] + there
    for gone, w in zip(out, after, strict=True):
        if phases.terms.plan:
            phases.slab[w] = phases.slab[w] + states + evicted - gone
    phases.model += into[-1] == states
    phases.model += out[-1] == states + evicted


def aside(phases: "Phases", g: int, h2d: list[Any], d2h: list[Any]) -> None:
    """What is put aside on the host from F_g to B_g: packed activations, boundaries.

    A plan moves it at once, through buffers for two microbatches of two shards.
    """
    up, down, count = phases.forward(g), phases.backward(g), phases.terms.microbatches
    sizes = []
    for i in phases.members(g):
        item = phases.terms.items[i]
        sizes.append(count * (item.offload_bytes or 0) / MB * phases.packed[i])
        if phases.terms.plan:
            size = count * item.in_bytes / phases.terms.shards / MB
            sizes.append(size * phases.spilled[i])
    total = lp_sum(sizes)
    windows = list(range(up, down + 1))
    near = max(1, min(2, len(windows) // 2)) if phases.terms.plan else len(windows)
    gone: Any = 0
    back: Any = 0
    for w in windows:
        if w < up + near:
            out = phases.var(f"p{g}_{w}")
            d2h[w] += out
            gone = phases.name(gone + out, f"pc{g}_{w}")
        if w > down - near:
            into = phases.var(f"q{g}_{w}")
            h2d[w] += into
            back = phases.name(back + into, f"qc{g}_{w}")
        if not phases.terms.plan:
            phases.model += back <= gone
            if w != down:
                phases.slab[w] = phases.slab[w] + total - gone + back
    phases.model += gone == total
    phases.model += back == total


def spread(phases: "Phases", windows: Sequence[int], link: list[Any], name: str) -> list[Any]:
    """A flow over a link in these windows: what has crossed it by the end of each."""
    sums: list[Any] = []
    for w in windows:
        part = phases.var(f"{name}_{w}")
        link[w] += part
        sums.append(phases.name((sums[-1] if sums else 0) + part, f"{name}c_{w}"))
    return sums
