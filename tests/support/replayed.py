"""A plan run on bytes, from its first segment to its last, in random orders that it leaves open;
shares no code with the checker.

Every node has a host store of its own that begins with all tasks. Segments, and the ops of each
segment, run in random orders; ops hash what they read, and must read what they would in plain
sequential training.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from support.emulate import Harm, Machine, Seen, first_values, judged, kept, need, reference
from support.noded import shard_of, taken

from plans.schema import Buffer, Op, Plan, Program, Segment, Task

Stores = dict[int, bytearray]


class Node(NamedTuple):
    round: int
    op: Op


def run_harm(plan: Plan, orders: int = 2, seed: int = 0) -> str | None:
    """What goes wrong in some of so many random orders, None if nothing does."""
    try:
        nodes = {device.node for device in plan.devices}
        for node in nodes:
            size = taken(plan, node) if len(nodes) > 1 else plan.host.bytes
            need(size <= plan.host.budget_bytes, f"node {node} is too small")
        apart(plan)
        for number in range(orders):
            run(plan, random.Random(seed + number))
    except Harm as found:
        return str(found)
    except (KeyError, IndexError, ValueError) as error:
        return f"cannot run: {error!r}"
    return None


def rounds_of(program: Program) -> list[tuple[int, tuple[Op, ...]]]:
    """For each kind of rounds the number of its microbatches, where they have tokens, and its
    ops."""
    kinds = [(len(kind.tokens), kind.ops) for kind in program.kinds]
    return [(len(program.tokens), program.round), *kinds]


# --- order and races ---


def apart(plan: Plan) -> None:
    """No two ops of a segment race, where each node has host buffers of its own."""
    host = {b.name: b for b in plan.host.buffers}
    for segment in plan.segments:
        program, nodes = plan.program(segment.program), _nodes(plan, segment)
        buffers = {b.name: b for b in program.buffers}
        buffers |= {
            f"{name}/{node}": replace(buffer, space=f"host {node}")
            for name, buffer in host.items()
            for node in set(nodes)
        }
        for _, ops in rounds_of(program):
            names = [op.id for op in (*program.enter, *ops, *program.leave)]
            need(len(set(names)) == len(names), "two ops of one name")
            for phase, repeats in ((program.enter, 1), (ops, 2), (program.leave, 1)):
                there = tuple(_there(op, host, nodes) for op in phase)
                none_race(*graph_of(there, repeats, rounds=phase is ops), buffers)


def _nodes(plan: Plan, segment: Segment) -> list[int]:
    return [plan.devices[number].node for number in segment.devices]


def _there(op: Op, host: Iterable[str], nodes: Sequence[int]) -> Op:
    """The op with the host buffers of its node."""
    node = nodes[op.queue.device]
    reads, writes = (
        {role: f"{name}/{node}" if name in host else name for role, name in roles.items()}
        for roles in (op.reads, op.writes)
    )
    return replace(op, reads=reads, writes=writes)


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
                    if (a_writes or b_writes) and overlap(a, b):
                        raise Harm(f"race of {nodes[i].op.id} and {nodes[j].op.id}")


def overlap(a: Buffer, b: Buffer) -> bool:
    same = a.space == b.space
    return same and max(a.offset, b.offset) < min(a.offset + a.bytes, b.offset + b.bytes)


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


class _Run:
    """A run of a plan. seen: what ops are to see in plain training; todo: what they have not."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self.plan, self.rng = plan, rng
        self.stores = _first(plan)
        self.steps = {task.name: 0 for task in plan.tasks}
        self.seen: Seen = {}
        self.final: dict[str, bytes] = {}
        for task in plan.tasks:
            seen, final = _expected(plan, task)
            self.seen |= seen
            self.final |= final
        self.todo = set(self.seen)

    def segment(self, segment: Segment) -> None:
        """Run a segment; every op sees what it sees in plain training."""
        program, nodes = self.plan.program(segment.program), _nodes(self.plan, segment)
        buffers = {b.name: b for b in [*self.plan.host.buffers, *program.buffers]}
        machine, first = Machine(self.plan, program, buffers), 0
        runs = segment.kinds or ((0, segment.rounds),)
        rounds = [(rounds_of(program)[kind][1], count, True) for kind, count in runs]
        for ops, count, repeats in ((program.enter, 1, False), *rounds, (program.leave, 1, False)):
            for node in in_random_order(*graph_of(ops, count, repeats), self.rng):
                machine.memory["host"] = self.stores[nodes[node.op.queue.device]]
                step = self.steps[node.op.name.task] + first + node.round
                for role, value in machine.step(node.op, step).items():
                    self.see(node.op, step, role, value)
            first += count * repeats
        for task in program.tasks:
            self.steps[task] += first

    def see(self, op: Op, step: int, role: str, value: bytes) -> None:
        kind = op.name.kind
        if kind in "FU" or (kind in "BIW" and role != "grad"):
            key = re.sub(r"\.[IW](\d+)$", r".B\1", op.id), step, role
            need(self.seen[key] == value, f"{op.id} step {step} sees another {role}")
            self.todo -= set() if kind == "W" else {key}

    def end(self) -> None:
        """All is done, and what is kept of each shard lies in the store of some node."""
        need(not self.todo, f"{sorted(self.todo)[:1]} never happened")
        host = {b.name: b.offset for b in self.plan.host.buffers}
        for shard in {shard_of(name) for name in self.final}:
            own = {host[n]: value for n, value in self.final.items() if shard_of(n) == shard}
            whole = (
                all(store[at : at + len(value)] == value for at, value in own.items())
                for store in self.stores.values()
            )
            need(any(whole), f"the last state of {shard} is lost")


def run(plan: Plan, rng: random.Random) -> None:
    """Run all segments, each when those are over that have its devices or tasks before it."""
    made, done = _Run(plan, rng), set[int]()
    claims = [{*map(str, one.devices), *plan.trained(one)} for one in plan.segments]
    needs = [{i for i in range(j) if claims[i] & own} for j, own in enumerate(claims)]
    while len(done) < len(needs):
        ready = [at for at, before in enumerate(needs) if at not in done and before <= done]
        index = rng.choice(ready)
        done.add(index)
        made.segment(plan.segments[index])
    made.end()


def _expected(plan: Plan, task: Task) -> tuple[Seen, dict[str, bytes]]:
    """What the ops of a task see, and what is kept of it in the end."""
    counts = []
    for segment in plan.segments:
        program = plan.program(segment.program)
        if task.name in program.tasks:
            if program.evaluates:
                return judged(task)
            kinds = rounds_of(program)
            for kind, count in segment.kinds or ((0, segment.rounds),):
                counts += [kinds[kind][0] or task.microbatches] * count
    need(len(counts) == task.steps, "steps")
    return reference(task, len(counts), counts)


def _first(plan: Plan) -> Stores:
    """Every node's store with all tasks as they begin."""
    host = {b.name: b for b in plan.host.buffers}
    stores = {device.node: bytearray(plan.host.bytes) for device in plan.devices}
    for task in plan.tasks:
        for number in range(len(task.shards)):
            for name, value in kept(task, {number: first_values(task, number)}).items():
                need(len(value) <= host[name].bytes, f"{name} is too small")
                for store in stores.values():
                    store[host[name].offset : host[name].offset + len(value)] = value
    return stores
