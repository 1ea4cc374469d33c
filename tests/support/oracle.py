"""What a plan would really do, found by brute force and without the checker.

Contents are bytes: every op hashes what it reads and writes the result, as on a machine. A plan
harms when some pair of conflicting accesses is unordered (all pairs are tried, over the closure
of the order) or when, in one of several random orders, an op sees other bytes than in plain
sequential training, or the host store ends up with others.
"""

from msgspec.structs import replace
from support.emulate import ROUNDS, Harm, need
from support.replayed import overlap, run_harm

from plans.schema import Buffer, Plan, Program, Segment, Task


def harm(plan: Plan, seed: int = 0, orders: int = 2) -> str | None:
    """How the plan harms, or None."""
    try:
        _static(plan)
        _segments_apart(plan)
    except Harm as found:
        return str(found)
    except (KeyError, IndexError, ValueError) as error:
        return f"cannot run: {error!r}"
    every = (run_harm(_alone(plan, program), orders, seed) for program in plan.programs)
    return next(filter(None, every), None)


def _alone(plan: Plan, program: Program) -> Plan:
    """ROUNDS rounds of a program on one node, beside all other tasks as they begin."""
    count = program.devices
    segment = Segment(program.name, tuple(range(count)), ROUNDS, 0, 0)
    devices = (replace(plan.devices[0], node=0),) * count
    tasks = (replace(t, steps=ROUNDS * (t.name in program.tasks)) for t in plan.tasks)
    return replace(plan, devices=devices, tasks=tuple(tasks), segments=(segment,))


def _static(plan: Plan) -> None:
    for task in plan.tasks:
        _whole(task)
    for buffer in plan.host.buffers:
        need(buffer.offset + buffer.bytes <= plan.host.bytes, "host store")
    programs = {program.name: program for program in plan.programs}
    for task in plan.tasks:
        own = [s for s in plan.segments if task.name in programs[s.program].tasks]
        trains = [s.rounds for s in own if not programs[s.program].evaluates]
        need(sum(trains) == task.steps, "steps")
        _evaluations(task, [(programs[s.program].evaluates, s.rounds) for s in own])
    for segment in plan.segments:
        program = programs[segment.program]
        need(len(set(segment.devices)) == program.devices == len(segment.devices), "devices")
        for memory, number in zip(program.memory, segment.devices, strict=True):
            budget = plan.devices[number].budget_bytes
            need(memory.slab_bytes + memory.reserve_bytes <= budget, "device budget")
        for op in [*program.enter, *program.round, *program.leave]:
            if not op.stream.startswith("host"):
                memory = program.memory[int(op.stream.split(".")[0])]
                need(op.transient_bytes <= memory.reserve_bytes, "reserve")
        for buffer in program.buffers:
            slab = program.memory[int(buffer.space)].slab_bytes
            need(buffer.offset + buffer.bytes <= slab, "slab")


def _whole(task: Task) -> None:
    need(task.microbatch * task.microbatches == task.batch, "batch")
    layers = [n for s in task.shards for n in range(s.first_layer, s.end_layer)]
    need(layers == list(range(len(layers))), "layers")
    for tie in task.ties:
        homes = [{n in range(s.first_layer, s.end_layer) for n in tie} for s in task.shards]
        need({True} in homes, "tie")
    for shard in task.shards:
        keeps = shard.activations != "recompute"
        need(not (keeps and shard is task.shards[-1]), "the last shard keeps nothing")
        need(keeps or not shard.saved_bytes, "saved bytes of what is not saved")
        again = {m for m in shard.recomputed if shard.activations == "offload"}
        in_turn = sorted(m for m in again if m < task.microbatches)
        need(list(shard.recomputed) == in_turn, "recomputed microbatches")


def _evaluations(task: Task, runs: list[tuple[bool, int]]) -> None:
    """Step by step, and batch by batch where the task is evaluated."""
    told = "".join(rounds * ("e" if evaluates else "t") for evaluates, rounds in runs)
    wanted = ""
    for step in range(1, task.steps + 1):
        judge = task.evaluation
        wanted += "t" + "e" * (judge.batches if judge and step % judge.every == 0 else 0)
    need(told == wanted, "evaluations")


def _segments_apart(plan: Plan) -> None:
    """Segments that no chain of shared devices or tasks orders touch no common host bytes."""
    programs = {program.name: program for program in plan.programs}
    claims = [
        {*map(str, s.devices), *(f"task {t}" for t in programs[s.program].tasks)}
        for s in plan.segments
    ]
    after: list[set[int]] = []
    for j, mine in enumerate(claims):
        direct = {i for i in range(j) if claims[i] & mine}
        after.append(direct.union(*(after[i] for i in direct)))
    touched = {name: _host_accesses(program, plan) for name, program in programs.items()}
    for j in range(len(claims)):
        for i in set(range(j)) - after[j]:
            for a, aw in touched[plan.segments[i].program]:
                for b, bw in touched[plan.segments[j].program]:
                    need(not ((aw or bw) and overlap(a, b)), "segments race on the host")


def _host_accesses(program: Program, plan: Plan) -> list[tuple[Buffer, bool]]:
    host = {b.name: b for b in plan.host.buffers}
    ops = [*program.enter, *program.round, *program.leave]
    pairs = {(n, False) for op in ops for n in op.reads.values()}
    pairs |= {(n, True) for op in ops for n in op.writes.values()}
    return [(host[name], writes) for name, writes in sorted(pairs) if name in host]
