"""A plan in words, for the terminal: who runs where and when, how good it is, one steady round."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import wrap

from planner.views.focus import in_ranges, on_devices
from planner.views.layout import bubble, layout_words, ranges, shards_on, stages
from planner.views.stalls import diagnosis
from planner.views.summary import (
    host_bytes,
    mean_completion_us,
    step_words,
    traffic,
)
from plans.order import node_count, store_bytes
from plans.schema import Device, Op, Plan, Program, Shard, Task
from plans.timing import (
    device_times,
    kind_rounds,
    kinds_of,
    rank,
    round_compute_us,
    round_exposed_us,
)
from profiles.console import columns
from profiles.units import show_bytes, show_us

_UPDATES = {
    "host": "updated on the host",
    "device": "updated on the device",
    "device-streamed": "updated on the device with streamed state",
}
_ACTS = {"recompute": "", "saved": ", graph saved", "offload": ", activations offloaded"}
_MOST_OPS = 8  # of a stream in the listing of a round
_MOST_RUNS = 12  # of alike shards in the listing of a task
_MOST_SEGMENTS = 24
_MOST_STREAMS = 40
_MOST_DEVICES = 64  # rows of a program
_MOST_ALONE = 16  # devices that have a row each; of more, those that are alike share one
_GANG = ("device", "shards", "busy", "bubble", "peak", "exposed copies")


def describe(plan: Plan, *, rounds: bool = True) -> str:
    """Devices, tasks, segments, bounds, per-device prediction; with `rounds`, a round of each
    program."""
    gangs = [program for program in plan.programs if program.devices > 1]
    sections = (
        [f"plan by {plan.solver.policy}, seed {plan.solver.seed}: {_result(plan)}{_marks(plan)}"],
        ["devices", *_indented(_devices(plan)), *_shares(plan), *_stores(plan)],
        ["tasks", *(line for task in plan.tasks for line in _task(task))],
        ["segments", *_segments(plan)],
        ["bounds", *_indented(_bounds(plan))],
        *(["what keeps it there", *lines] for lines in [diagnosis(plan)] if lines),
        *(_gang(plan, program) for program in gangs[:_MOST_RUNS]),
        *(_kinds(plan, program) for program in plan.programs if program.tokens),
        *([more] if (more := _more("", len(gangs) - _MOST_RUNS, " such programs")) else []),
        ["memory of a program's device", *_indented(_memory(plan))],
        *(_round(program) for program in plan.programs if rounds),
    )
    return "\n\n".join("\n".join(section) for section in sections)


def _marks(plan: Plan) -> str:
    """The source of the plan's times, where it is not measured hardware."""
    marks = [plan.emulated, "estimated, not measured" if plan.estimated else ""]
    return "".join(f" ({mark})" for mark in marks if mark)


def _result(plan: Plan) -> str:
    p = plan.prediction
    cut = " (search stopped by its time limit)" if plan.solver.status == "time-limit" else ""
    mean = f", mean completion {show_us(mean_completion_us(plan))}" if len(plan.tasks) > 1 else ""
    return (
        f"makespan {show_us(p.makespan_us)}, {p.lower_bound_name} bound "
        f"{show_us(p.lower_bound_us)}, gap {p.gap_ppm / 1e4:.2f} %{mean}{cut}"
    )


def _devices(plan: Plan) -> list[tuple[str, ...]]:
    head = ("", "kind", "budget", "peak", "busy", "bubble", "exposed copies")
    makespan, several = max(plan.prediction.makespan_us, 1), node_count(plan) > 1
    rows: list[tuple[int, tuple[str, ...]]] = []
    for number, (device, p) in enumerate(zip(plan.devices, device_times(plan), strict=True)):
        sizes = map(show_bytes, (device.budget_bytes, p.peak_bytes))
        busy = p.compute_us / makespan
        times = (f"{busy:.1%}", f"{1 - busy:.1%}", show_us(p.exposed_copy_us))
        rows.append((number, (_kind(device), *sizes, *times)))
    named: list[tuple[str, ...]] = []
    for numbers, row in _folded(rows):
        own = [plan.devices[number] for number in numbers]
        names = " … ".join(dict.fromkeys(device.name for device in (own[0], own[-1])))
        node = in_ranges(sorted({device.node for device in own}))
        named.append((f"{in_ranges(numbers)} {names}" + f", node {node}" * several, *row))
    stores = list(enumerate(map(show_bytes, store_bytes(plan))))
    budget = show_bytes(plan.host.budget_bytes)
    for nodes, (size,) in _folded([(node, (size,)) for node, size in stores]):
        name = f"host store of node {in_ranges(nodes)}" if several else "host store"
        named.append((name, "", budget, size, "", "", ""))
    return [head, *named]


def _folded(rows: Sequence[tuple[int, tuple[str, ...]]]) -> list[tuple[list[int], tuple[str, ...]]]:
    """Numbered rows, where there are many those that say the same taken together."""
    if len(rows) <= _MOST_ALONE:
        return [([number], row) for number, row in rows]
    found: dict[tuple[str, ...], list[int]] = {}
    for number, row in rows:
        found.setdefault(row, []).append(number)
    return [(numbers, row) for row, numbers in found.items()]


def _shares(plan: Plan) -> list[str]:
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
    left = f"  left idle: {in_ranges(idle)} {names}; no plan that was found gains by it"
    return [*lines, left] if idle else lines


def _stores(plan: Plan) -> list[str]:
    """Lines on what is kept and moved beside the devices."""
    return [*_host(plan), *_disk(plan)]


def _host(plan: Plan) -> list[str]:
    """The host store's bytes by kind, in a line."""
    told = ", ".join(f"{kind} {show_bytes(size)}" for kind, size in host_bytes(plan).items())
    return [f"  the host store holds {told}"] if told else []


def _disk(plan: Plan) -> list[str]:
    """The disk's traffic, if tasks wait there."""
    told = traffic(plan)
    if not told.tasks:
        return []
    return [
        f"  disk: {told.tasks} task(s) wait there at times in {show_bytes(told.file_bytes)}; "
        f"{show_bytes(told.written_bytes)} written, {show_bytes(told.read_bytes)} read, which "
        f"takes segments {show_us(told.us)}"
    ]


def _kind(device: Device) -> str:
    return f"{device.kind}, {device.emulation.words}" if device.emulation else device.kind


def _task(task: Task) -> list[str]:
    """A task, and its shards with neighbours that differ only in their layers taken together."""
    lines = [
        f"  {task.name}: steps {task.steps}, batch {task.batch}{_microbatches(task)}, "
        f"{task.workload.ref}{_numbers(task)}",
        *([] if task.lengths else [f"    a step: {step_words(task)}"]),
    ]
    runs = [list(run) for _, run in groupby(enumerate(task.shards), key=lambda s: _alike(s[1]))]
    for run in runs[:_MOST_RUNS]:
        (first, shard), (last, end) = run[0], run[-1]
        names = f"s{first}" if first == last else f"s{first}-s{last}"
        low, high = shard.first_layer, end.end_layer - 1
        layers = f"layer {low}" if low == high else f"layers {low}-{high}"
        place = ("resident" if shard.resident else "streamed") + ", cast from masters" * shard.cast
        lines.append(
            f"    {names}: {layers}, {place}, {_UPDATES[shard.update]}{_ACTS[shard.activations]}, "
            f"parameters {show_bytes(sum(one.param_bytes for _, one in run))}"
        )
    left = sum(len(run) for run in runs[_MOST_RUNS:])
    return [*lines, *_more("    ", left, " shards")]


def _microbatches(task: Task) -> str:
    if task.lengths is None:
        return f" = {task.microbatches} x {task.microbatch}"
    window = task.lengths.window
    told = ", padded" * task.lengths.padded
    told += f", moved within windows of {window} steps" * (window > 1)
    return f" samples in up to {task.microbatches} microbatches of {task.microbatch} tokens{told}"


def _numbers(task: Task) -> str:
    """Precision, norms, earlier microbatches and start of a task, where not the default."""
    precision = f", {task.precision}" if task.precision != "fp32" else ""
    norms = ", updates wait for all norms" if task.norm_bytes else ""
    if task.earlier_microbatch:
        norms += f", microbatches of {task.earlier_microbatch} up to step {task.done}"
    return precision + norms + (f", not before {show_us(task.start_us)}" if task.start_us else "")


def _alike(shard: Shard) -> tuple[bool, bool, str, str, int]:
    layers = shard.end_layer - shard.first_layer
    return shard.resident, shard.cast, shard.update, shard.activations, layers


def _segments(plan: Plan) -> list[str]:
    """The first segments in order of time."""
    tasks = {program.name: ", ".join(program.tasks) for program in plan.programs}
    ordered = sorted(plan.segments, key=lambda s: s.start_us)
    rows = [
        (
            show_us(segment.start_us),
            show_us(segment.end_us),
            segment.program,
            in_ranges(segment.devices),
            str(segment.rounds),
            tasks[segment.program],
        )
        for segment in ordered[:_MOST_SEGMENTS]
    ]
    lines = _indented([("from", "to", "program", "devices", "rounds", "tasks"), *rows])
    return [*lines, *_more("  ", len(ordered) - _MOST_SEGMENTS, " segments")]


def _memory(plan: Plan) -> list[tuple[str, ...]]:
    """Each program's slab and reserve."""
    rows: list[tuple[str, ...]] = [("program", "slab", "reserve")]
    for program in plan.programs[:_MOST_RUNS]:
        numbers, own = _first_devices(plan, program), list[tuple[int, tuple[str, ...]]]()
        for number, memory in zip(numbers, program.memory, strict=True):
            sizes = show_bytes(memory.slab_bytes), show_bytes(memory.reserve_bytes)
            own.append((number, sizes))
        for alike, row in _folded(own)[:_MOST_DEVICES]:
            name = program.name if program.devices == 1 else f"{program.name}, {on_devices(alike)}"
            rows.append((name, *row))
    return rows


def _first_devices(plan: Plan, program: Program) -> tuple[int, ...]:
    """The devices that a program runs on first; of one that never runs their numbers in it."""
    runs = (one.devices for one in plan.segments if one.program == program.name)
    return next(runs, tuple(range(program.devices)))


def _gang(plan: Plan, program: Program) -> list[str]:
    """A program on several devices: its layout, and what each of them does in a round."""
    devices = _first_devices(plan, program)
    period, shards = max(program.period_us, 1), dict[int, list[str]]()
    for task in program.tasks:
        for device, mine in shards_on(stages(program, task)).items():
            shards.setdefault(device, []).append(ranges(mine))
    rows: list[tuple[int, tuple[str, ...]]] = []
    times = zip(devices, round_compute_us(program), round_exposed_us(program), strict=True)
    for local, (device, busy_us, exposed_us) in enumerate(times):
        memory = program.memory[local]
        told = (show_bytes(memory.slab_bytes + memory.reserve_bytes), show_us(exposed_us))
        busy = busy_us / period
        held = "; ".join(shards.get(local, ()))
        rows.append((device, (held, f"{busy:.1%}", f"{1 - busy:.1%}", *told)))
    head = f"{program.name} on {on_devices(devices)}, a round every {show_us(period)}"
    layouts = [
        line
        for task in program.tasks
        for line in wrap(
            f"  {task}: {layout_words(program, task, devices)}", 100, subsequent_indent="    "
        )
    ]
    folded = [(in_ranges(numbers), *row) for numbers, row in _folded(rows)]
    more = _more("  ", len(folded) - _MOST_DEVICES, " rows")
    table = _indented([_GANG, *folded[:_MOST_DEVICES]])
    head = f"{head}, bubble {bubble(program):.1%}{_least(plan, program)}"
    return [head, *layouts, *table, *more]


def _kinds(plan: Plan, program: Program) -> list[str]:
    """The kinds of rounds of a program: how many, how often, and the tokens of their
    microbatches."""
    rows: list[tuple[str, ...]] = [("kind", "rounds", "every", "tokens")]
    counts = kind_rounds(plan, program)
    for number, (kind, rounds) in enumerate(zip(kinds_of(program), counts, strict=True)):
        alike = [(size, len(list(same))) for size, same in groupby(kind.tokens)]
        tokens = [f"{count} x {size}" if count > 1 else str(size) for size, count in alike]
        told = " ".join([*tokens[:_MOST_RUNS], *_more("", len(tokens) - _MOST_RUNS)])
        rows.append((str(number), str(rounds), show_us(kind.period_us), told))
    mine = [way for way in plan.solver.alternatives if not way.why_not]
    mine = [way for way in mine if program.name in (way.task, f"{way.task}.{way.layout}")]
    ways = [f", pipelines {way.layout} in order {way.order}" for way in mine]
    head = f"kinds of rounds of {program.name}{''.join(ways)}: the most tokens of each microbatch"
    return [head, *_indented(rows)]


def _least(plan: Plan, program: Program) -> str:
    """The bound on rounds of a program's stages and microbatches, where it is known, and the gap
    to it: what is left of the plan's gap is that of the layout."""
    taken = (one for one in plan.solver.alternatives if one.task in program.tasks)
    for one in taken:
        if one.devices == program.devices and not one.why_not and not program.tokens:
            gap = 1 - one.bound_us / max(program.period_us, 1)
            return f"; of this layout at least {show_us(one.bound_us)}, gap {gap:.1%}"
    return ""


def _bounds(plan: Plan) -> list[tuple[str, ...]]:
    """Every bound, the best first, with the gap it would leave by itself; then that of any
    schedule of the plan's own programs."""
    told = plan.prediction
    bounds = [(bound.name, bound.us) for bound in sorted(told.bounds, key=lambda b: -b.us)]
    if told.configuration_us:
        bounds.append(("of these programs", told.configuration_us))
    makespan = max(told.makespan_us, 1)
    rows = [(name, show_us(us), f"{1 - us / makespan:.2%}") for name, us in bounds]
    return [("bound", "at least", "gap"), *rows]


def _round(program: Program) -> list[str]:
    """The round's ops stream by stream: name@start+duration in µs."""
    head = (
        f"round of {program.name}: {len(program.round)} ops, every {show_us(program.period_us)}; "
        "op@start+duration in µs"
    )
    lines = [head]
    queues: dict[str, list[Op]] = {}
    for op in program.round:
        queues.setdefault(op.stream, []).append(op)
    for stream in sorted(queues, key=rank)[:_MOST_STREAMS]:
        lines.append(f"  {stream}: {_listing(queues[stream], alone=len(program.tasks) == 1)}")
    return [*lines, *_more("  ", len(queues) - _MOST_STREAMS, " streams")]


def _listing(ops: Sequence[Op], *, alone: bool) -> str:
    """Up to _MOST_OPS ops; the task is left out of the names where the program has but one."""
    shown = [
        f"{op.id.split('.', 1)[1] if alone else op.id}@{op.start_us}+{op.end_us - op.start_us}"
        for op in ops[:_MOST_OPS]
    ]
    return " ".join([*shown, *_more("", len(ops) - _MOST_OPS)])


def _more(indent: str, count: int, what: str = "") -> list[str]:
    return [f"{indent}… and {count} more{what}"] if count > 0 else []


def _indented(rows: Iterable[Sequence[str]]) -> list[str]:
    return ["  " + line for line in columns(rows)]
