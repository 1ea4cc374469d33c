"""What devices and the host's store hold and do by a plan, as lines of text."""

from collections import Counter
from textwrap import wrap

from planner.views.layout import bubble, layout_words, shards_on, stages
from planner.views.summary import host_bytes
from planner.views.words import few, folded, in_ranges, indented, listed, on_devices, ranges
from plans.order import kept_bytes, node_count, store_bytes, waiting
from plans.schema import Device, Plan, Program
from plans.timing import device_times, round_compute_us, round_exposed_us
from profiles.units import show_bytes, show_us

_MOST_ROWS = 64  # of a program
_MOST_PROGRAMS = 12
_LITTLE = 50  # below 1/n of a round, copies cost next to nothing
_GANG = ("device", "shards", "busy", "bubble", "peak", "exposed copies")


def devices(plan: Plan) -> list[str]:
    """A row for each device and store, how all devices spend their time, and what the host store
    holds and the disk moves."""
    return [*indented(device_rows(plan)), *_all_devices(plan), *_stores(plan)]


def device_rows(plan: Plan) -> list[tuple[str, ...]]:
    """A row for each device and store, below the names of the columns."""
    head = ("", "kind", "budget", "peak", "busy", "bubble", "exposed copies")
    makespan, several = max(plan.prediction.makespan_us, 1), node_count(plan) > 1
    rows: list[tuple[int, tuple[str, ...]]] = []
    for number, (device, p) in enumerate(zip(plan.devices, device_times(plan), strict=True)):
        sizes = map(show_bytes, (device.budget_bytes, p.peak_bytes))
        times = (*_shares(p.compute_us / makespan), show_us(p.exposed_copy_us))
        rows.append((number, (_kind(device), *sizes, *times)))
    named: list[tuple[str, ...]] = []
    for numbers, row in folded(rows):
        own = [plan.devices[number] for number in numbers]
        names = " … ".join(dict.fromkeys(device.name for device in (own[0], own[-1])))
        node = in_ranges(sorted({device.node for device in own}))
        named.append((f"{in_ranges(numbers)} {names}" + f", node {node}" * several, *row))
    stores = [(node, (show_bytes(size),)) for node, size in enumerate(store_bytes(plan))]
    budget = show_bytes(plan.host.budget_bytes)
    for nodes, (size,) in folded(stores):
        name = f"host store of node {in_ranges(nodes)}" if several else "host store"
        named.append((name, "", budget, size, "", "", ""))
    return [head, *named]


def _shares(busy: float) -> tuple[str, str]:
    """The shares of a device's time in which it computes and does not."""
    return f"{busy:.1%}", f"{1 - busy:.1%}"


def _kind(device: Device) -> str:
    return f"{device.kind}, {device.emulation.words}" if device.emulation else device.kind


def _all_devices(plan: Plan) -> list[str]:
    """A line on how several devices spend their time, and which of them no segment is on."""
    told = device_times(plan)
    if len(told) == 1:
        return []
    every = len(told) * max(plan.prediction.makespan_us, 1)
    compute = sum(one.compute_us for one in told) / every
    copies = min(sum(one.exposed_copy_us for one in told) / every, 1 - compute)
    spent = f"{compute:.1%} compute, {copies:.1%} exposed copies"
    lines = [f"  of all devices' time: {spent}, {1 - compute - copies:.1%} bubble"]
    busy = {device for segment in plan.segments for device in segment.devices}
    idle = [number for number in range(len(told)) if number not in busy]
    names = " … ".join(dict.fromkeys(plan.devices[n].name for n in (*idle[:1], *idle[-1:])))
    same = f"{len(busy)} device{'s' * (len(busy) > 1)} would take"
    left = f"  left idle: {in_ranges(idle)} {names}; no plan that was found gains by it: {same} "
    return [*lines, left + show_us(plan.prediction.makespan_us)] if idle else lines


def streamed(plan: Plan) -> list[str]:
    """Lines that say why shards do not stay on their devices, one for all programs with the same
    reason; none where all stay."""
    found: dict[str, list[str]] = {}
    for program in plan.programs:
        if not program.evaluates and (why := _why_streamed(plan, program)):
            found.setdefault(why, []).append(program.name)
    return [f"  {few(names)}: {why}" for why, names in found.items()]


def _why_streamed(plan: Plan, program: Program) -> str:
    """The same of one program, by its device whose shards are the largest; empty where all stay."""
    whole, moves = Counter[int](), False
    for name in program.tasks:
        shards = plan.task(name).shards
        for device, mine in shards_on(stages(program, name)).items():
            own = [shards[k] for k in mine]
            moves |= not all(one.resident for one in own)
            kept = sum(one.param_bytes + one.grad_bytes + one.state_bytes for one in own)
            whole[device] += kept + sum(one.base_bytes for one in own)
    if not moves:
        return ""
    budget = min(plan.devices[n].budget_bytes for n in _first_devices(plan, program))
    size, beside = max(whole.values()), max(one.reserve_bytes for one in program.memory)
    told = f"{show_bytes(size)} of parameters, gradients and optimizer state, beside "
    told += f"{show_bytes(beside)} of transients, "
    if size + beside > budget:
        return f"{told}are more than the {show_bytes(budget)} of a device"
    exposed = max(round_exposed_us(program))
    but = f" but {show_us(exposed)} of a round" * (exposed > 0)
    if exposed * _LITTLE <= program.period_us:
        return f"{told}could; streaming costs next to nothing: compute hides all copies{but}"
    return f"{told}could; compute hides all copies{but}, and no plan that was found is faster"


def _stores(plan: Plan) -> list[str]:
    """The host store's bytes by kind, in a line; another on the disk's traffic, if tasks wait
    there."""
    held = ", ".join(f"{kind} {show_bytes(size)}" for kind, size in host_bytes(plan).items())
    lines = [f"  the host store holds {held}"] if held else []
    waits = {name: kept_bytes(plan.task(name)) for name in waiting(plan)}
    own = [(sum(waits.get(n, 0) for n in plan.trained(one)), one) for one in plan.segments]
    written = sum(size for size, one in own if one.write_us is not None)
    read = sum(size for size, one in own if one.read_us is not None)
    told = (
        f"  disk: {len(waits)} task(s) wait there at times in {show_bytes(sum(waits.values()))}; "
        f"{show_bytes(written)} written, {show_bytes(read)} read, which takes segments "
        f"{show_us(sum(one.disk_us for one in plan.segments))}"
    )
    return [*lines, told] if waits else lines


def memory(plan: Plan) -> list[str]:
    """A row for the slab and reserve of each program's devices."""
    rows: list[tuple[str, ...]] = [("program", "slab", "reserve")]
    for program in plan.programs[:_MOST_PROGRAMS]:
        sizes = [(show_bytes(m.slab_bytes), show_bytes(m.reserve_bytes)) for m in program.memory]
        own = list(zip(_first_devices(plan, program), sizes, strict=True))
        for alike, row in folded(own)[:_MOST_ROWS]:
            name = program.name if program.devices == 1 else f"{program.name}, {on_devices(alike)}"
            rows.append((name, *row))
    return indented(rows)


def _first_devices(plan: Plan, program: Program) -> tuple[int, ...]:
    """The devices that a program runs on first; of one that never runs their numbers in it."""
    runs = (one.devices for one in plan.segments if one.program == program.name)
    return next(runs, tuple(range(program.devices)))


def gang(plan: Plan, program: Program) -> list[str]:
    """A program on several devices: its layout, and what each of them does in a round."""
    numbers = _first_devices(plan, program)
    period, shards = max(program.period_us, 1), dict[int, list[str]]()
    head = f"{program.name} on {on_devices(numbers)}, a round every {show_us(period)}"
    lines = [f"{head}, bubble {bubble(program):.1%}{_least(plan, program)}"]
    for task in program.tasks:
        words = f"  {task}: {layout_words(program, task, numbers)}"
        lines += wrap(words, 100, subsequent_indent="    ")
        for device, mine in shards_on(stages(program, task)).items():
            shards.setdefault(device, []).append(ranges(mine))
    rows: list[tuple[int, tuple[str, ...]]] = []
    times = zip(numbers, round_compute_us(program), round_exposed_us(program), strict=True)
    for local, (device, busy_us, exposed_us) in enumerate(times):
        own = program.memory[local]
        told = (show_bytes(own.bytes), show_us(exposed_us))
        held = "; ".join(shards.get(local, ()))
        rows.append((device, (held, *_shares(busy_us / period), *told)))
    shown = [(in_ranges(alike), *row) for alike, row in folded(rows)]
    return [*lines, *listed(_GANG, shown, _MOST_ROWS, " rows")]


def _least(plan: Plan, program: Program) -> str:
    """The bound on rounds that train with a program's stages and microbatches, where it is known,
    and the gap to it: what is left of the plan's gap is that of the layout."""
    known = not (program.evaluates or program.tokens)
    taken = (one for one in plan.solver.alternatives if known and one.task in program.tasks)
    for one in taken:
        if one.devices == program.devices and not one.why_not:
            gap = 1 - one.bound_us / max(program.period_us, 1)
            return f"; of this layout at least {show_us(one.bound_us)}, gap {gap:.1%}"
    return ""
