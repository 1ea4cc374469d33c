"""The checker: proves that a plan can run, fits, and trains the right numbers.

It trusts neither planner nor executor and knows only the format. The groups of rules are in
README.md; each has its module: shape and roles, order, races, symbolic (versions), capacity,
times, graphs, disk, network, lengths, and whole tasks here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import structs

from plans.checker.alike import likeness
from plans.checker.alive import live_bytes
from plans.checker.capacity import (
    devices_fit,
    foreign_writes,
    host_fits,
    kept,
    memory_fits,
    stores,
    updates_fit,
    values_fit,
)
from plans.checker.concurrent import shared_bytes
from plans.checker.graphs import activations, kept_graphs, left_over
from plans.checker.lengths import (
    Pair,
    following,
    kinds_shape,
    known_kinds,
    lengths_shape,
    pairs,
    runs_shape,
)
from plans.checker.network import (
    Nodes,
    ledger,
    nodes_kept,
    nodes_shape,
    on_nodes,
    pattern,
    program_nodes,
    spread,
    states_found,
)
from plans.checker.order import cycles, linearise, phases
from plans.checker.races import own_conflicts, races
from plans.checker.roles import casts
from plans.checker.shape import known, plan_shape, program_shape
from plans.checker.symbolic import versions
from plans.checker.times import certificate, phase_times, predictions, segment_times
from plans.order import Stays, disk_shape, evaluations
from plans.schema import Plan, Task
from plans.ties import tie_rules
from plans.view import View, by_kind, view
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
    found = Findings()
    named = not found.add("names", plan_shape(plan))
    found.add("kinds", lengths_shape(plan))
    found.add("kinds", runs_shape(plan))
    plan, nodes = known_kinds(known(plan)), len({device.node for device in plan.devices})
    found.add("host store", host_fits(plan, nodes))
    found.add("nodes", nodes_shape(plan))
    # Reads and writes that make no sense would let everything else look wrong, or right.
    stays = None if found.add("disk", disk_shape(plan)) else Stays(plan)
    if stays:
        found.add("host store", stores(plan, stays))
    for task in plan.tasks:
        found.add("tasks", _whole(task))
        found.add("tasks", tie_rules(task))
        found.add("tasks", activations(task))
        found.add("tasks", casts(task))
    found.add("tasks", left_over(plan))
    found.add("steps", _steps(plan))
    found.add("evaluations", evaluations(plan))
    sound = _programs(found, plan, stays, nodes)
    found.add("devices", _placed(plan, sound))
    if nodes > 1 and named and len(sound) == len(plan.programs):
        found.add("nodes", states_found(plan))
        found.add("nodes", ledger(plan, sound))
    found.add("segments", shared_bytes(plan, sound))
    found.add("times", segment_times(plan))
    found.add("prediction", certificate(plan))
    if named and not found.total:  # of nonsense nothing follows
        found.add("prediction", predictions(plan))
    return found


def _programs(found: Findings, plan: Plan, stays: Stays | None, nodes: int) -> dict[str, View]:
    """Look at every program; those of sound shape, by name. `stays`: None where reads
    and writes make no sense."""
    tasks = {task.name: task for task in plan.tasks}
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    extents = kept(plan)
    placed = program_nodes(plan)
    found.add("nodes", nodes_kept(plan, placed))
    possible = [p for p in plan.programs if not found.add("kinds", kinds_shape(p, tasks))]
    after = pairs(plan, {program.name for program in possible})
    sound: dict[str, View] = {}
    # Likenesses, with the nodes and the pairs of kinds, of sound ones.
    proven: set[tuple[bytes, Nodes, frozenset[Pair]]] = set()
    for program in possible:
        where = f" [program {program.name!r}]" if len(plan.programs) > 1 else ""
        what = view(program, tasks, host)
        if found.add("ops", program_shape(what, host), where):
            continue
        sound[program.name] = what
        if stays:
            found.add("host store", foreign_writes(what, extents, stays), where)
        own = placed.get(program.name, ())
        alike = likeness(what), pattern(own), after[program.name]
        if alike not in proven:
            before = found.total
            _inside(found, what, where, own, after[program.name])
            if nodes == 1:
                found.add("memory", updates_fit(what, plan.host), where)
            proven |= {alike} if found.total == before else set()
    return sound


def _inside(found: Findings, what: View, where: str, nodes: Nodes, after: frozenset[Pair]) -> None:
    """Violations inside a program of sound shape; programs that are alike are judged once.

    nodes: those of its devices. after: its kinds of rounds that come one after the other."""
    found.add("memory", memory_fits(what), where)
    kinds, marks = by_kind(what), _marks(what, where)
    rounds = [kinds[0], *map(_rounds_alone, kinds[1:])]  # what all kinds share is looked at once
    rings = [_ops(found, one, mark) for one, mark in zip(rounds, marks, strict=True)]
    if any(rings):
        return
    for one, mark in zip(rounds, marks, strict=True):
        found.add("times", phase_times(one.program, phases(one.program)), mark)
    enter, _, leave = map(linearise, phases(kinds[0].program))
    orders = [[enter, linearise(phases(one.program)[1]), leave] for one in kinds]
    wrong = _stores(found, spread(what, nodes), orders, after, where + on_nodes(nodes))
    for one, order, mark in zip(kinds, orders, marks, strict=True) if not wrong else ():
        found.add("memory", live_bytes(one, phases(one.program), order), mark)


def _marks(what: View, where: str) -> list[str]:
    """The ends of violations of each kind of rounds."""
    count = len(by_kind(what))
    return [f" [kind {number}]{where}" if count > 1 else where for number in range(count)]


def _rounds_alone(what: View) -> View:
    return what._replace(program=structs.replace(what.program, enter=(), leave=()))


def _ops(found: Findings, what: View, where: str) -> bool:
    """Violations of the ops of a program one by one; True if some wait for themselves."""
    found.add("memory", values_fit(what), where)
    found.add("graphs", kept_graphs(what), where)
    own = (line for op in what.program.ops for line in own_conflicts(op, what.buffers))
    found.add("races", own, where)
    rings = (line for phase in phases(what.program) for line in cycles(phase))
    return found.add("order", rings, where)


def _stores(
    found: Findings,
    what: View,
    orders: Sequence[list[list[int]]],
    after: frozenset[Pair],
    where: str,
) -> bool:
    """True if races or wrong values are among the violations of a program with these stores;
    orders: of each of its kinds."""
    kinds, marks, wrong = by_kind(what), _marks(what, where), False
    parts = [phases(one.program) for one in kinds]
    for number, (its, order, mark) in enumerate(zip(parts, orders, marks, strict=True)):
        for phase, nodes in zip(its, order, strict=True):
            if not number or phase.name == "round":
                wrong |= found.add("races", races(phase, nodes, what.buffers), mark)
        wrong |= found.add("values", versions(kinds[number], its, order), mark)
    if not wrong:
        wrong = found.add("values", following(kinds, after, parts, orders), where)
    return wrong


def _placed(plan: Plan, sound: dict[str, View]) -> Iterator[str]:
    """The devices of every segment are large enough, told once per program and devices."""
    for name, devices in dict.fromkeys((s.program, s.devices) for s in plan.segments):
        if name not in sound or len(devices) != sound[name].program.devices:
            continue
        if max(devices) < len(plan.devices):
            yield from devices_fit(sound[name].program, plan, devices)


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
