"""What a plan would really do, found by brute force and without the checker.

Contents are bytes: every op hashes what it reads and writes the result, as on a machine. A plan
harms when some pair of conflicting accesses is unordered (all pairs are tried, over the closure
of the order) or when, in one of several random orders, an op sees other bytes than in plain
sequential training, or the host store ends up with others.
"""

import random
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from support.emulate import ROUNDS, Harm, Machine, Seen, first_values, judged, kept, need, reference

from plans.schema import Buffer, Op, Plan, Program, Task


class Node(NamedTuple):
    round: int
    op: Op


def harm(plan: Plan, seed: int = 0, orders: int = 2) -> str | None:
    """How the plan harms, or None."""
    try:
        _static(plan)
        _segments_apart(plan)
        for program in plan.programs:
            _program(program, plan, random.Random(seed), orders)
    except Harm as found:
        return str(found)
    except (KeyError, IndexError, ValueError) as error:
        return f"cannot run: {error!r}"
    return None


# --- facts that need no order ---------------------------------------------------------------


def _static(plan: Plan) -> None:
    for task in plan.tasks:
        _whole(task)
    need(plan.host.bytes <= plan.host.budget_bytes, "host budget")
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
                    need(not ((aw or bw) and _overlap(a, b)), "segments race on the host")


def _host_accesses(program: Program, plan: Plan) -> list[tuple[Buffer, bool]]:
    host = {b.name: b for b in plan.host.buffers}
    ops = [*program.enter, *program.round, *program.leave]
    pairs = {(n, False) for op in ops for n in op.reads.values()}
    pairs |= {(n, True) for op in ops for n in op.writes.values()}
    return [(host[name], writes) for name, writes in sorted(pairs) if name in host]


def _overlap(a: Buffer, b: Buffer) -> bool:
    same = a.space == b.space
    return same and max(a.offset, b.offset) < min(a.offset + a.bytes, b.offset + b.bytes)


# --- order and races ------------------------------------------------------------------------


def _program(program: Program, plan: Plan, rng: random.Random, orders: int) -> None:
    buffers = {b.name: b for b in [*plan.host.buffers, *program.buffers]}
    ops = [*program.enter, *program.round, *program.leave]
    need(len({op.id for op in ops}) == len(ops), "two ops of one name")
    phases = [
        graph_of(program.enter, 1, rounds=False),
        graph_of(program.round, ROUNDS, rounds=True),
        graph_of(program.leave, 1, rounds=False),
    ]
    for nodes, before in phases:
        none_race(nodes, before, buffers)
    for _ in range(orders):
        line = [node for graph in phases for node in in_random_order(*graph, rng)]
        _compare(line, program, plan, buffers)


def graph_of(ops: tuple[Op, ...], repeats: int, rounds: bool) -> tuple[list[Node], list[set[int]]]:
    """The ops of so many rounds, and for each those that it waits for."""
    nodes = [Node(r, op) for r in range(repeats) for op in ops]
    index = {(node.round, node.op.id): i for i, node in enumerate(nodes)}
    before: list[set[int]] = [set() for _ in nodes]
    for i, node in enumerate(nodes):
        before[i] |= {j for j in range(i) if nodes[j].op.stream == node.op.stream}
        for name in node.op.after:
            if rounds and name.endswith("@-1"):
                need((0, name[:-3]) in index, f"{name} is no op")
                if node.round:
                    before[i].add(index[node.round - 1, name[:-3]])
            else:
                before[i].add(index[node.round, name])
    return nodes, before


def none_race(nodes: list[Node], before: list[set[int]], buffers: Mapping[str, Buffer]) -> None:
    """Harm where two of these ops conflict and are not ordered."""
    reach = _closure(before)
    touched = [
        [(buffers[n], False) for n in node.op.reads.values()]
        + [(buffers[n], True) for n in node.op.writes.values()]
        for node in nodes
    ]
    for j in range(len(nodes)):
        for i in range(j):
            if reach[j] >> i & 1 or reach[i] >> j & 1:
                continue
            for a, a_writes in touched[i]:
                for b, b_writes in touched[j]:
                    if (a_writes or b_writes) and _overlap(a, b):
                        raise Harm(f"race of {nodes[i].op.id} and {nodes[j].op.id}")


def _closure(before: list[set[int]]) -> list[int]:
    """Everything before each node, as bits; Harm on a cycle."""
    reach = [sum(1 << j for j in direct) for direct in before]
    for k in range(len(before)):
        for i in range(len(before)):
            if reach[i] >> k & 1:
                reach[i] |= reach[k]
    need(not any(bits >> i & 1 for i, bits in enumerate(reach)), "deadlock")
    return reach


def in_random_order(
    nodes: list[Node], before: list[set[int]], rng: random.Random
) -> Iterator[Node]:
    """The nodes in an order that keeps all edges."""
    waiting = {i: set(direct) for i, direct in enumerate(before)}
    done: set[int] = set()
    while waiting:
        i = rng.choice([i for i, direct in waiting.items() if direct <= done])
        del waiting[i]
        done.add(i)
        yield nodes[i]


# --- execution against plain training ---


def _compare(line: list[Node], program: Program, plan: Plan, buffers: Mapping[str, Buffer]) -> None:
    machine = Machine(plan, program, buffers)
    expected: Seen = {}
    final: dict[str, bytes] = {}
    for task in plan.tasks:
        if task.name in program.tasks:
            seen, held = judged(task) if program.evaluates else reference(task)
            expected, final = expected | seen, final | held
        else:
            for s in range(len(task.shards)):
                final |= kept(task, {s: first_values(task, s)})
    todo = set(expected)
    for node in line:
        for role, value in machine.step(node.op, node.round).items():
            kind = node.op.name.kind
            whole = re.sub(r"\.[IW](\d+)$", r".B\1", node.op.id)  # of which it is a part
            if kind in "FU" or (kind in "BIW" and role != "grad"):
                key = (whole, node.round, role)
                need(expected[key] == value, f"{node.op.id} round {node.round} sees another {role}")
                todo -= set() if kind == "W" else {key}
    need(not todo, f"{sorted(todo)[:1]} never happened")
    for name, value in final.items():
        need(machine.read(name, len(value)) == value, f"{name} ends wrong")
