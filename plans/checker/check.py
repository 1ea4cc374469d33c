"""The checker: proves that a plan can run, fits, and trains the right numbers.

It trusts neither planner nor executor and knows only the format. The groups of rules are in
README.md; each has its module: shape and roles, order, races, symbolic (versions), capacity,
times, graphs, disk, network, lengths, and whole tasks here.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from plans.checker.alike import likeness
from plans.checker.capacity import (
    devices_fit,
    foreign_writes,
    host_fits,
    memory_fits,
    stores,
    updates_fit,
    values_fit,
)
from plans.checker.concurrent import shared_bytes
from plans.checker.context import Context, KindContext, ProgramContext, Rule, ask
from plans.checker.graphs import activations, kept_graphs, left_over
from plans.checker.lengths import (
    Pair,
    following,
    kinds_shape,
    lengths_shape,
    pairs,
    runs_shape,
)
from plans.checker.network import (
    Nodes,
    ledger,
    nodes_kept,
    nodes_shape,
    pattern,
    states_found,
)
from plans.checker.order import cycles
from plans.checker.races import own_conflicts, races
from plans.checker.roles import casts
from plans.checker.shape import plan_shape, program_shape
from plans.checker.symbolic import versions
from plans.checker.times import certificate, phase_times, segment_times
from plans.order import disk_shape, evaluations
from plans.schema import Plan, Task
from plans.ties import tie_rules
from plans.view import view
from profiles.findings import Findings


def violations(plan: Plan) -> list[str]:
    """Every rule that `plan` breaks, one line each, beginning with the name of what breaks it; of
    one kind no more than the first ones, and how many others there are.

    Empty when the plan is sound. A program whose shape is broken is not looked at further: what
    else it breaks may show only once that is repaired.
    """
    return findings(plan).lines()


def findings(plan: Plan) -> Findings:
    """Every rule that `plan` breaks."""
    found, context = Findings(), Context(plan)
    broken = ask(found, _PLAN, context)
    _programs(found, context, broken)
    if len(context.views) < len(plan.programs):
        broken.add("programs")
    ask(found, _TOGETHER, context, broken=broken)
    return found


def _programs(found: Findings, context: Context, broken: Collection[str]) -> None:
    """Look at every program; those that are alike are proven once."""
    possible = [
        program
        for program in context.plan.programs
        if not found.add("kinds", kinds_shape(program, context.tasks))
    ]
    after = pairs(context.plan, {program.name for program in possible})
    # Likenesses, with the nodes and the pairs of kinds, of sound ones.
    proven: set[tuple[bytes, Nodes, frozenset[Pair]]] = set()
    for program in possible:
        where = f" [program {program.name!r}]" if len(context.plan.programs) > 1 else ""
        what = view(program, context.tasks, context.host)
        one = ProgramContext(context, what, where, after[program.name])
        if "shape" in ask(found, _SHAPE, one, where, broken):
            continue
        context.views[program.name] = what
        nodes = context.placed.get(program.name, ())
        alike = likeness(what), pattern(nodes), one.after
        if alike not in proven:
            before = found.total
            _inside(found, one, nodes)
            proven |= {alike} if found.total == before else set()


def _inside(found: Findings, program: ProgramContext, nodes: Nodes) -> None:
    """Violations inside a program of sound shape, whose devices are on these nodes."""
    broken = ask(found, _PROGRAM, program, program.where)
    for kind in program.kinds:
        broken |= ask(found, _KIND, kind, kind.where)
    if "cycles" in broken:
        return
    one, wrong = program.on(nodes), set[str]()
    for kind in one.kinds:
        wrong |= ask(found, _VALUES, kind, kind.where)
    ask(found, _FOLLOWING, one, one.where, wrong)


def _placed(context: Context) -> Iterator[str]:
    """The devices of every segment are large enough, told once per program and devices."""
    plan, sound = context.plan, context.views
    for name, devices in dict.fromkeys((s.program, s.devices) for s in plan.segments):
        if name not in sound or len(devices) != sound[name].program.devices:
            continue
        if max(devices) < len(plan.devices):
            yield from devices_fit(sound[name].program, plan, devices)


def _tasks(context: Context) -> Iterator[str]:
    """Violations of each task by itself."""
    for task in context.plan.tasks:
        for rule in (_whole, tie_rules, activations, casts):
            yield from rule(task)


def _whole(task: Task) -> Iterator[str]:
    """Shards cover the layers in order with boundaries between them, microbatches fill a batch."""
    end = 0
    for number, shard in enumerate(task.shards):
        name = f"{task.name}.s{number}"
        if shard.first_layer != end:
            yield f"{name}: begins at layer {shard.first_layer}, expected {end}"
        if shard.end_layer <= shard.first_layer:
            yield f"{name}: has no layer: from {shard.first_layer} up to {shard.end_layer}"
        end = shard.end_layer
        if (shard.in_bytes > 0) != (number > 0):
            wanted = "expected at least 1" if number else "expected 0"
            yield f"{name}: has {shard.in_bytes} boundary bytes before it, {wanted}"
        if shard.rng_draws is None and task.microbatches > 1:
            yield (
                f"{name}: rng_draws is unknown, which allows 1 microbatch, not {task.microbatches}"
            )
    if task.parts.together and task.microbatches > 1:
        yield (
            f"{task.name}: its batch stays whole ({task.parts.why}), which allows 1 microbatch, "
            f"not {task.microbatches}"
        )
    total = task.microbatch * task.microbatches
    if total != task.batch and not task.lengths:
        yield (
            f"{task.name}: {task.microbatches} microbatches of {task.microbatch} make {total}, "
            f"the batch is {task.batch}"
        )


def _steps(plan: Plan) -> Iterator[str]:
    """The rounds of all segments of a task add up to its steps."""
    rounds: Counter[str] = Counter()
    for segment in plan.segments:
        program = plan.program_of(segment)
        if program and not program.evaluates:
            rounds.update(dict.fromkeys(program.tasks, segment.rounds))
    for task in plan.tasks:
        if rounds[task.name] != task.steps:
            yield (
                f"{task.name}: all segments together train {rounds[task.name]} steps, "
                f"expected {task.steps}"
            )
        elif not task.steps:
            yield f"{task.name}: has 0 steps, expected 1 at least; leave it out"


def _foreign(program: ProgramContext) -> Iterator[str]:
    whole = program.whole
    return foreign_writes(program.view, whole.kept, whole.stays)


def _updates(program: ProgramContext) -> Iterable[str]:
    """On one node; on several the ledger counts them."""
    whole = program.whole
    return updates_fit(program.view, whole.plan.host) if whole.nodes == 1 else ()


def _follow(program: ProgramContext) -> Iterator[str]:
    kinds = program.kinds
    return following([k.view for k in kinds], [k.phases for k in kinds], program.after)


_PLAN: tuple[Rule[Context], ...] = (
    Rule("names", "names", lambda c: plan_shape(c.given)),
    Rule("lengths", "kinds", lambda c: lengths_shape(c.given)),
    Rule("runs", "kinds", lambda c: runs_shape(c.given)),
    Rule("host", "host store", lambda c: host_fits(c.plan, c.nodes)),
    Rule("nodes", "nodes", lambda c: nodes_shape(c.plan)),
    Rule("disk", "disk", lambda c: disk_shape(c.plan)),
    Rule("stores", "host store", lambda c: stores(c.plan, c.stays), ("disk",)),
    Rule("tasks", "tasks", _tasks),
    Rule("left over", "tasks", lambda c: left_over(c.plan)),
    Rule("steps", "steps", lambda c: _steps(c.plan)),
    Rule("evaluations", "evaluations", lambda c: evaluations(c.plan)),
    Rule("kept nodes", "nodes", lambda c: nodes_kept(c.plan, c.placed)),
)
"""What needs no program to be of sound shape."""

_SHAPE: tuple[Rule[ProgramContext], ...] = (
    Rule("shape", "ops", lambda p: program_shape(p.view, p.whole.host)),
    Rule("foreign", "host store", _foreign, ("shape", "disk")),
)

_PROGRAM: tuple[Rule[ProgramContext], ...] = (
    Rule("memory", "memory", lambda p: memory_fits(p.view)),
    Rule("updates", "memory", _updates),
)
"""What programs that are alike have in common, down to _FOLLOWING."""

_KIND: tuple[Rule[KindContext], ...] = (
    Rule("values fit", "memory", lambda k: values_fit(k.view, k.ops)),
    Rule("graphs", "graphs", lambda k: kept_graphs(k.view)),
    Rule(
        "own",
        "races",
        lambda k: own_conflicts(k.ops, k.view.buffers),
    ),
    Rule("cycles", "order", lambda k: cycles(k.own)),
    Rule("times", "times", lambda k: phase_times(k.own), ("cycles",)),
)

_VALUES: tuple[Rule[KindContext], ...] = (
    Rule(
        "races",
        "races",
        lambda k: races(k.own, k.view.buffers),
    ),
    Rule("values", "values", lambda k: versions(k.view, k.phases)),
)
"""What depends on the nodes of a program's devices, and is asked where no op waits for itself."""

_FOLLOWING: tuple[Rule[ProgramContext], ...] = (
    Rule("following", "values", _follow, ("races", "values")),
)

_NODES = ("names", "nodes", "programs")

_TOGETHER: tuple[Rule[Context], ...] = (
    Rule("devices", "devices", _placed),
    Rule("states", "nodes", lambda c: states_found(c.plan) if c.nodes > 1 else (), _NODES),
    Rule("ledger", "nodes", lambda c: ledger(c.plan, c.views) if c.nodes > 1 else (), _NODES),
    Rule("segments", "segments", lambda c: shared_bytes(c.plan, c.views)),
    Rule("segment times", "times", lambda c: segment_times(c.plan)),
    Rule("certificate", "prediction", lambda c: certificate(c.plan)),
)
"""What needs the views of programs, or every program to be of sound shape ("programs")."""
