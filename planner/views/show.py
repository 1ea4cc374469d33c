"""A plan in words, for the terminal: who runs where and when, how good it is, one steady round."""

from collections.abc import Sequence
from itertools import groupby

from planner.views.alternatives import bases
from planner.views.devices import devices, gang, memory, streamed
from planner.views.stalls import diagnosis
from planner.views.summary import mean_completion_us, step_words
from planner.views.words import in_ranges, indented, listed, more
from plans.schema import Op, Plan, Program, Shard, Task
from plans.timing import kind_rounds, kinds_of, rank
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


def describe(plan: Plan, *, rounds: bool = True) -> str:
    """Devices, tasks, segments, bounds, per-device prediction; with `rounds`, a round of each
    program."""
    gangs = [program for program in plan.programs if program.devices > 1]
    sections = (
        [f"plan by {plan.solver.policy}, seed {plan.solver.seed}: {_result(plan)}{_marks(plan)}"],
        ["devices", *devices(plan)],
        ["tasks", *(line for task in plan.tasks for line in _task(task))],
        *(["what keeps shards from staying", *lines] for lines in [streamed(plan)] if lines),
        *(["tasks of one base", *lines] for lines in [bases(plan)] if lines),
        ["segments", *_segments(plan)],
        ["bounds", *indented(bounds(plan))],
        *(["what keeps it there", *lines] for lines in [diagnosis(plan)] if lines),
        *(gang(plan, program) for program in gangs[:_MOST_RUNS]),
        *(_kinds(plan, program) for program in plan.programs if program.tokens),
        *([left] if (left := more("", len(gangs) - _MOST_RUNS, " such programs")) else []),
        ["memory of a program's device", *memory(plan)],
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
        base = sum(one.base_bytes for _, one in run)
        names = f"s{first}" if first == last else f"s{first}-s{last}"
        low, high = shard.first_layer, end.end_layer - 1
        layers = f"layer {low}" if low == high else f"layers {low}-{high}"
        place = ("resident" if shard.resident else "streamed") + ", cast from masters" * shard.cast
        lines.append(
            f"    {names}: {layers}, {place}, {_UPDATES[shard.update]}{_kept(shard, task)}, "
            f"parameters {show_bytes(sum(one.param_bytes for _, one in run))}"
            + (f" on the base of {task.base}, {show_bytes(base)}" if base else "")
        )
    left = sum(len(run) for run in runs[_MOST_RUNS:])
    return [*lines, *more("    ", left, " shards")]


def _kept(shard: Shard, task: Task) -> str:
    """Words for the activations that a shard keeps, and for how many microbatches."""
    count = task.microbatches - len(shard.recomputed)
    return _ACTS[shard.activations] + f" of {count} microbatch(es)" * bool(shard.recomputed)


def _microbatches(task: Task) -> str:
    if task.lengths is None:
        return f" = {task.microbatches} x {task.microbatch}"
    window = task.lengths.reordered
    told = ", padded" * task.lengths.padded
    told += f", reordered within windows of {window} steps" * (window > 0)
    return f" samples in up to {task.microbatches} microbatches of {task.microbatch} tokens{told}"


def _numbers(task: Task) -> str:
    """Precision, norms, earlier microbatches and start of a task, where not the default."""
    precision = f", {task.precision}" if task.precision != "fp32" else ""
    norms = ", updates wait for all norms" if task.norm_bytes else ""
    if task.earlier_microbatch:
        norms += f", microbatches of {task.earlier_microbatch} up to step {task.done}"
    return precision + norms + (f", not before {show_us(task.start_us)}" if task.start_us else "")


def _alike(shard: Shard) -> tuple[object, ...]:
    layers = shard.end_layer - shard.first_layer
    kept = shard.activations, len(shard.recomputed)
    return shard.resident, shard.cast, shard.update, kept, layers


def _segments(plan: Plan) -> list[str]:
    """The first segments in order of time."""
    rows = [
        (
            *(show_us(segment.start_us), show_us(segment.end_us)),
            *(segment.program, in_ranges(segment.devices), str(segment.rounds)),
            ", ".join(plan.program(segment.program).tasks),
        )
        for segment in sorted(plan.segments, key=lambda s: s.start_us)
    ]
    head = ("from", "to", "program", "devices", "rounds", "tasks")
    return listed(head, rows, _MOST_SEGMENTS, " segments")


def _kinds(plan: Plan, program: Program) -> list[str]:
    """The kinds of rounds of a program: how many, how often, and the tokens of their
    microbatches."""
    rows: list[tuple[str, ...]] = [("kind", "rounds", "every", "tokens")]
    counts = kind_rounds(plan, program)
    for number, (kind, rounds) in enumerate(zip(kinds_of(program), counts, strict=True)):
        alike = [(size, len(list(same))) for size, same in groupby(kind.tokens)]
        tokens = [f"{count} x {size}" if count > 1 else str(size) for size, count in alike]
        told = " ".join([*tokens[:_MOST_RUNS], *more("", len(tokens) - _MOST_RUNS)])
        rows.append((str(number), str(rounds), show_us(kind.period_us), told))
    mine = [way for way in plan.solver.alternatives if not way.why_not]
    mine = [way for way in mine if program.name in (way.task, f"{way.task}.{way.layout}")]
    ways = [f", pipelines {way.layout} in order {way.order}" for way in mine]
    head = f"kinds of rounds of {program.name}{''.join(ways)}: the most tokens of each microbatch"
    return [head, *indented(rows)]


def bounds(plan: Plan) -> list[tuple[str, ...]]:
    """Every bound, the best first, with the gap it would leave by itself; then that of any
    schedule of the plan's own programs."""
    told = plan.prediction
    found = [(bound.name, bound.us) for bound in sorted(told.bounds, key=lambda b: -b.us)]
    if told.configuration_us:
        found.append(("of these programs", told.configuration_us))
    makespan = max(told.makespan_us, 1)
    rows = [(name, show_us(us), f"{1 - us / makespan:.2%}") for name, us in found]
    return [("bound", "at least", "gap"), *rows]


def _round(program: Program) -> list[str]:
    """The round's ops stream by stream: name@start+duration in µs."""
    head = (
        f"round of {program.name}: {len(program.round)} ops, every {show_us(program.period_us)}; "
        "op@start+duration in µs"
    )
    ops = sorted(program.round, key=lambda op: rank(op.stream))
    lines = [
        f"  {stream}: {_listing(list(own), alone=len(program.tasks) == 1)}"
        for stream, own in groupby(ops, key=lambda op: op.stream)
    ]
    left = more("  ", len(lines) - _MOST_STREAMS, " streams")
    return [head, *lines[:_MOST_STREAMS], *left]


def _listing(ops: Sequence[Op], *, alone: bool) -> str:
    """Up to _MOST_OPS ops; the task is left out of the names where the program has but one."""
    shown = [
        f"{op.id.split('.', 1)[1] if alone else op.id}@{op.start_us}+{op.us}"
        for op in ops[:_MOST_OPS]
    ]
    return " ".join([*shown, *more("", len(ops) - _MOST_OPS)])
