"""The checker: proves that a plan can run, fits, and trains the right numbers.

It trusts neither planner nor executor and knows only the format. The nine groups of rules are
in README.md; each has its module: shape and roles, order, races, symbolic (versions), capacity,
times, graphs, disk, and whole tasks here.
"""

from collections.abc import Iterator

from msgspec import structs

from plans.alike import likeness
from plans.capacity import (
    devices_fit,
    foreign_writes,
    host_fits,
    kept,
    memory_fits,
    stores,
    values_fit,
)
from plans.concurrent import shared_bytes
from plans.disk import Stays, move_order, move_times, moves_shape
from plans.evaluation import evaluations
from plans.graphs import activations, kept_graphs
from plans.order import Phase, cycles, linearise, phases
from plans.races import own_conflicts, races
from plans.roles import casts
from plans.schema import Host, Plan, Task
from plans.shape import View, plan_shape, program_shape, view
from plans.symbolic import versions
from plans.ties import tie_rules
from plans.times import certificate, phase_times, segment_times


def violations(plan: Plan) -> list[str]:
    """Every rule that `plan` breaks, one line each, beginning with the name of what breaks it.

    Empty when the plan is sound. A program whose shape is broken is not looked at further: what
    else it breaks may show only once that is repaired.
    """
    found = [*plan_shape(plan), *host_fits(plan)]
    moves = list(moves_shape(plan))
    # Moves that make no sense would let everything else look wrong, or right.
    stays = Stays(structs.replace(plan, disk=None) if moves else plan)
    found += moves or [*stores(plan, stays), *move_order(plan), *move_times(plan)]
    for task in plan.tasks:
        found += [*_whole(task), *activations(task), *casts(task)]
    found += [*_steps(plan), *evaluations(plan)]
    tasks = {task.name: task for task in plan.tasks}
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    extents = kept(plan)
    sound: dict[str, View] = {}
    proven: set[bytes] = set()  # likenesses of programs that break no rule
    for program in plan.programs:
        what = view(program, tasks, host)
        parts, lines = phases(program)
        lines += program_shape(what, host)
        if not lines:
            sound[program.name] = what
            lines = [] if moves else list(foreign_writes(what, extents, stays))
            if (alike := likeness(what)) not in proven:
                inside = _program(what, parts, plan.host)
                proven |= set() if inside else {alike}
                lines += inside
        where = f" [program {program.name!r}]" if len(plan.programs) > 1 else ""
        found += [line + where for line in lines]
    found += [*_placed(plan, sound), *([] if moves else shared_bytes(plan, sound, stays))]
    found += [*segment_times(plan), *certificate(plan)]
    return list(dict.fromkeys("\\n".join(line.splitlines()) for line in found))


def _program(what: View, parts: list[Phase], store: Host) -> list[str]:
    """What is wrong inside a program of sound shape: nothing, or something in all alike."""
    found = [*values_fit(what), *memory_fits(what, store)]
    found += kept_graphs(what)
    found += [line for op in what.ops() for line in own_conflicts(op, what.buffers)]
    if rings := [line for phase in parts for line in cycles(phase)]:
        return found + rings
    found += phase_times(what.program, parts)
    orders = [linearise(phase) for phase in parts]
    for phase, order in zip(parts, orders, strict=True):
        found += races(phase, order, what.buffers)
    return found + versions(what, parts, orders)


def _placed(plan: Plan, sound: dict[str, View]) -> Iterator[str]:
    """The devices of every segment are large enough, told once per program and devices."""
    for name, devices in dict.fromkeys((s.program, s.devices) for s in plan.segments):
        if name not in sound or len(devices) != sound[name].program.devices:
            continue
        if max(devices) < len(plan.devices):
            yield from devices_fit(sound[name].program, plan, devices)


def _whole(task: Task) -> Iterator[str]:
    """Shards cover the layers in order, ties have one owner, microbatches fill a batch."""
    if task.shards[0].in_bytes:
        yield f"{task.name}.s0: has {task.shards[0].in_bytes} boundary bytes before it, expected 0"
    end = 0
    for number, shard in enumerate(task.shards):
        name = f"{task.name}.s{number}"
        if shard.first_layer != end:
            yield f"{name}: begins at layer {shard.first_layer}, expected {end}"
        if shard.end_layer <= shard.first_layer:
            yield f"{name}: has no layer: from {shard.first_layer} up to {shard.end_layer}"
        end = shard.end_layer
    yield from tie_rules(task)
    for number, shard in enumerate(task.shards):
        if shard.rng_draws is None and task.microbatches > 1:
            yield (
                f"{task.name}.s{number}: rng_draws is unknown, which allows 1 microbatch, "
                f"not {task.microbatches}"
            )
    total = task.microbatch * task.microbatches
    if total != task.batch:
        yield (
            f"{task.name}: {task.microbatches} microbatches of {task.microbatch} make {total}, "
            f"the batch is {task.batch}"
        )


def _steps(plan: Plan) -> Iterator[str]:
    """The rounds of all segments of a task add up to its steps."""
    trains = {p.name: set(p.tasks) for p in plan.programs if not p.evaluates}
    rounds = dict.fromkeys((task.name for task in plan.tasks), 0)
    for segment in plan.segments:
        for name in trains.get(segment.program, set()) & rounds.keys():
            rounds[name] += segment.rounds
    for task in plan.tasks:
        if rounds[task.name] != task.steps:
            yield (
                f"{task.name}: all segments together train {rounds[task.name]} steps, "
                f"expected {task.steps}"
            )
