"""What a plan on several nodes, or with kinds of rounds, would do to bytes, from its first segment
to its last; shares no code with the checker.

Every node has a host store of its own that begins with all tasks. Segments and the ops of each
segment run in random orders that the plan leaves open; ops hash what they read.
"""

import random
import re
from collections.abc import Mapping

from msgspec.structs import replace
from support.emulate import Harm, Machine, Seen, first_values, kept, need, reference
from support.noded import node_of, shard_of, taken
from support.oracle import Node, graph_of, in_random_order, none_race

from plans.schema import Buffer, Op, Plan, Program, Segment

Stores = dict[int, bytearray]


def net_harm(plan: Plan, orders: int = 2, first: int = 0) -> str | None:
    """What goes wrong in some of so many random orders, None if nothing does."""
    try:
        _static(plan)
        for seed in range(first, first + orders):
            _run(plan, random.Random(seed))
    except Harm as found:
        return str(found)
    except (KeyError, IndexError, ValueError) as error:
        return f"cannot run: {error!r}"
    return None


def _static(plan: Plan) -> None:
    for node in {device.node for device in plan.devices}:
        need(taken(plan, node) <= plan.host.budget_bytes, f"node {node} is too small")
    for segment in plan.segments:
        _apart(plan, plan.program(segment.program), segment)


def _apart(plan: Plan, program: Program, segment: Segment) -> None:
    """No two ops race, where each node has host buffers of its own."""
    own: dict[str, Buffer] = {b.name: b for b in program.buffers}
    host = {b.name: b for b in plan.host.buffers}
    nodes = [device.node for device in plan.devices]

    def local(op: Op) -> Op:
        node = node_of(op, segment.devices, nodes)
        roles = []
        for named in (op.reads, op.writes):
            roles.append({r: f"{n}/{node}" if n in host else n for r, n in named.items()})
            for name in named.values():
                if name in host:
                    own[f"{name}/{node}"] = replace(host[name], space=f"host {node}")
        return replace(op, reads=roles[0], writes=roles[1])

    rounds = ((kind, 2) for kind in _kinds(program))
    for phase, count in ((program.enter, 1), *rounds, (program.leave, 1)):
        none_race(*graph_of(tuple(map(local, phase)), count, rounds=count > 1), own)


def _kinds(program: Program) -> list[tuple[Op, ...]]:
    return [program.round, *(kind.ops for kind in program.kinds)]


def _microbatches(plan: Plan, task: str) -> list[int]:
    """Of each step, where they are not always as many."""
    counts = []
    for segment in plan.segments:
        program = plan.program(segment.program)
        if program.tokens and task in program.tasks:
            sizes = [len(program.tokens), *(len(kind.tokens) for kind in program.kinds)]
            counts += [sizes[kind] for kind, rounds in segment.kinds for _ in range(rounds)]
    return counts


def _needs(plan: Plan) -> list[set[int]]:
    """What each segment waits for."""
    tasks = [{*plan.trained(one)} for one in plan.segments]
    return [
        {
            other
            for other in range(index)
            if {*one.devices} & {*plan.segments[other].devices} or tasks[index] & tasks[other]
        }
        for index, one in enumerate(plan.segments)
    ]


def _run(plan: Plan, rng: random.Random) -> None:
    stores = _first(plan)
    wanted = {t.name: reference(t, t.steps, _microbatches(plan, t.name)) for t in plan.tasks}
    seen: Seen = {}
    for one, _ in wanted.values():
        seen |= one
    needs, done = _needs(plan), set[int]()
    steps = {task.name: 0 for task in plan.tasks}
    while len(done) < len(needs):
        ready = [at for at, before in enumerate(needs) if at not in done and before <= done]
        index = rng.choice(ready)
        done.add(index)
        _segment(plan, plan.segments[index], stores, steps, seen, rng)
    for _, final in wanted.values():
        _over(plan, stores, final)


def _first(plan: Plan) -> Stores:
    """Every node's store with all tasks as they begin."""
    host = {b.name: b for b in plan.host.buffers}
    nodes = {device.node for device in plan.devices}
    stores = {node: bytearray(plan.host.bytes) for node in nodes}
    for task in plan.tasks:
        for number in range(len(task.shards)):
            for name, value in kept(task, {number: first_values(task, number)}).items():
                for store in stores.values():
                    store[host[name].offset : host[name].offset + len(value)] = value
    return stores


def _segment(
    plan: Plan,
    segment: Segment,
    stores: Stores,
    steps: dict[str, int],
    seen: Mapping[tuple[str, int, str], bytes],
    rng: random.Random,
) -> None:
    """Run a segment; every op sees what it sees in plain training."""
    program, nodes = plan.program(segment.program), [device.node for device in plan.devices]
    buffers = {b.name: b for b in [*plan.host.buffers, *program.buffers]}
    machine = Machine(plan, program, buffers)
    line = list(in_random_order(*graph_of(program.enter, 1, rounds=False), rng))
    done = 0
    for kind, rounds in segment.kinds or ((0, segment.rounds),):
        graph = graph_of(_kinds(program)[kind], rounds, rounds=True)
        line += (Node(done + round_, op) for round_, op in in_random_order(*graph, rng))
        done += rounds
    line += in_random_order(*graph_of(program.leave, 1, rounds=False), rng)
    for node in line:
        name = node.op.name
        step = steps[name.task] + node.round
        machine.memory["host"] = stores[node_of(node.op, segment.devices, nodes)]
        for role, value in machine.step(node.op, step).items():
            whole = re.sub(r"\.[IW](\d+)$", r".B\1", node.op.id)
            if name.kind in "FU" or (name.kind in "BIW" and role != "grad"):
                told = f"{node.op.id} step {step} sees another {role}"
                need(seen[whole, step, role] == value, told)
    for task in program.tasks:
        steps[task] += segment.rounds


def _over(plan: Plan, stores: Stores, final: Mapping[str, bytes]) -> None:
    """All that is kept of each shard lies in the store of some node in the end."""
    host = {b.name: b for b in plan.host.buffers}
    for shard in {shard_of(name) for name in final}:
        own = {host[name].offset: value for name, value in final.items() if shard_of(name) == shard}
        whole = (
            all(store[at : at + len(value)] == value for at, value in own.items())
            for store in stores.values()
        )
        need(any(whole), f"the last state of {shard} is lost")
