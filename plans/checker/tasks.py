"""Rule 6 of the checker: whole tasks, and how their shards are trained."""

from collections import Counter
from collections.abc import Iterator

from plans.ops import OpKind
from plans.order import waiting
from plans.schema import Plan, Task
from profiles.findings import few


def task_rules(plan: Plan) -> Iterator[str]:
    """Violations of each task by itself."""
    for task in plan.tasks:
        for rule in (_whole, _ties, _shards):
            yield from rule(task)
    yield from _bases(plan)


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


def _shards(task: Task) -> Iterator[str]:
    """Every shard's `activations` and `saved_bytes` go together; parameters are made from masters
    only where every one of them has one."""
    for number, shard in enumerate(task.shards):
        where = f"{task.name}.s{number}"
        if shard.activations == "recompute" and shard.saved_bytes:
            yield f"{where}: keeps {shard.saved_bytes} saved bytes but recomputes, expected 0"
        if shard.recomputed and shard.activations != "offload":
            yield f"{where}: recomputes {len(shard.recomputed)} microbatches, but packs none"
        known = {m for m in shard.recomputed if m < task.microbatches}
        if list(shard.recomputed) != sorted(known):
            yield (
                f"{where}: recomputes microbatches {few(shard.recomputed)}, expected some of "
                f"0 to {task.microbatches - 1}, ascending"
            )
        if shard.activations != "recompute" and number == len(task.shards) - 1:
            yield (
                f"{where}: activations are {shard.activations!r}, but the last shard has no F that "
                "could keep any; expected 'recompute'"
            )
        where += ": casts its parameters from masters, but"
        if shard.cast and task.precision != "bf16":
            yield f"{where} the task's precision is {task.precision!r}, expected 'bf16'"
        elif shard.cast and shard.grad_bytes != shard.param_bytes:
            yield (
                f"{where} {shard.grad_bytes} of its {shard.param_bytes} parameter bytes are "
                "trained; others have none"
            )
        elif shard.cast and shard.state_bytes < shard.param_bytes:
            yield f"{where} its state has {shard.state_bytes} bytes for {shard.param_bytes}"


def _bases(plan: Plan) -> Iterator[str]:
    """Tasks of one base have it in the same shards; the task in whose name it is has it too, and
    none of them waits on the disk, where others would find the base gone."""
    by_name, away = {task.name: task for task in plan.tasks}, waiting(plan)
    for task in plan.tasks:
        if not task.base:
            sizes = [shard.base_bytes for shard in task.shards]
            if any(sizes):
                yield f"{task.name}: has {sum(sizes)} base bytes, but no base"
            continue
        first = by_name.get(task.base)
        if first is None or first.base != task.base:
            yield f"{task.name}: its base is that of {task.base!r}, which has none in its name"
        elif _held(first) != _held(task):
            yield f"{task.name}: its base lies in other shards than that of {task.base!r}"
        if task.name in away:
            yield f"{task.name}: waits on the disk, but has a base in the host store"


def _held(task: Task) -> list[tuple[int, int, int]]:
    """Where the base of a task lies: first layer, end and bytes of each shard."""
    return [(shard.first_layer, shard.end_layer, shard.base_bytes) for shard in task.shards]


def _ties(task: Task) -> Iterator[str]:
    """Tied layers share a shard, or all that do not have one owner."""
    homes = {group: task.homes(group) for group in task.ties}
    apart = {group: places for group, places in homes.items() if len({*places}) > 1}
    astray = {group: places for group, places in homes.items() if None in places}
    for group, places in (astray if task.tie_bytes else apart | astray).items():
        told = ", ".join(sorted({"no shard" if n is None else f"s{n}" for n in places}))
        yield f"{task.name}: tied layers {list(group)} lie in {told}, expected one shard"
    if task.tie_bytes and not apart:
        yield (
            f"{task.name}: has {task.tie_bytes} tie bytes, but no tied layers lie in several "
            "shards, expected 0"
        )
    elif task.tie_bytes and not astray and task.crossing is None:
        owners = ", ".join(f"s{n}" for n in sorted({places[0] or 0 for places in apart.values()}))
        yield f"{task.name}: ties across shards are owned by {owners}, expected one owner"


def left_over(plan: Plan) -> Iterator[str]:
    """Nothing is left for a second part where no backward has one."""
    ids = (op.id.rpartition(".") for program in plan.programs for op in program.ops)
    split = {item for item, _, kind in ids if kind.startswith(OpKind.INPUT_GRAD)}
    for task in plan.tasks:
        for number, shard in enumerate(task.shards):
            where = f"{task.name}.s{number}"
            if shard.left_bytes and where not in split:
                yield (
                    f"{where}: has {shard.left_bytes} left bytes, but none of its backwards is "
                    "split, expected 0"
                )


def all_steps(plan: Plan) -> Iterator[str]:
    """The rounds of all segments of a task add up to its steps."""
    rounds: Counter[str] = Counter()
    for segment in plan.segments:
        program = plan.program(segment.program)
        if not program.evaluates:
            rounds.update(dict.fromkeys(program.tasks, segment.rounds))
    for task in plan.tasks:
        if rounds[task.name] != task.steps:
            yield (
                f"{task.name}: all segments together train {rounds[task.name]} steps, "
                f"expected {task.steps}"
            )
        elif not task.steps:
            yield f"{task.name}: has 0 steps, expected 1 at least; leave it out"
