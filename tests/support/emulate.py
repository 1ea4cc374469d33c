"""A plan's ops on bytes: every op hashes what it reads and writes the result.

Beside it plain sequential training with the same hashes, so that both can be compared.
"""

import marshal
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from hashlib import shake_128
from typing import NamedTuple

import numpy as np

from plans.ops import OpName
from plans.schema import Buffer, Op, Plan, Program, Task

ROUNDS = 3

Seen = dict[tuple[str, int, str], bytes]  # op id, round, role -> the bytes read


class Harm(Exception):
    """The plan does harm; the message says how."""


def need(fact: bool, what: str) -> None:
    """Harm unless `fact`."""
    if not fact:
        raise Harm(what)


@lru_cache(maxsize=1 << 14)  # mutants of a plan compute most of the values that it computes
def digest(size: int, *parts: Hashable) -> bytes:
    return shake_128(marshal.dumps(parts, 2)).digest(size)  # 2: equal values, equal bytes


@lru_cache(maxsize=1 << 14)
def _add(a: bytes, b: bytes) -> bytes:
    """Byte by byte, modulo 256."""
    need(len(a) == len(b), "sizes differ")
    return (np.frombuffer(a, np.uint8) + np.frombuffer(b, np.uint8)).tobytes()


def forward(task: Task, s: int, param: bytes, source: bytes) -> bytes:
    return digest(task.shards[s + 1].in_bytes, "y", task.name, s, param, source)


def packed(task: Task, s: int, param: bytes, source: bytes) -> bytes:
    """What a forward that packs keeps for its backward."""
    return digest(task.shards[s].saved_bytes, "a", task.name, s, param, source)


def backward(task: Task, s: int, *read: bytes) -> tuple[bytes, bytes]:
    """Gradient and dx of one microbatch."""
    shard = task.shards[s]
    grad = digest(shard.grad_bytes, "grad", task.name, s, read)
    return grad, digest(shard.in_bytes, "dx", task.name, s, read)


def update(task: Task, s: int, *read: bytes) -> tuple[bytes, bytes]:
    shard = task.shards[s]
    state = digest(shard.state_bytes, "s", read)
    return cast(task, s, state) if shard.cast else digest(shard.param_bytes, "p", read), state


def cast(task: Task, s: int, state: bytes) -> bytes:
    """The parameters that a state has masters of."""
    return digest(task.shards[s].param_bytes, "cast", task.name, s, state)


def updated(task: Task, s: int) -> tuple[str, ...]:
    """The roles that an update reads and writes beside gradients and norms."""
    shard = task.shards[s]
    return ("state",) if shard.cast and shard.update == "host" else ("param", "state")


def stored(task: Task, s: int) -> list[str]:
    """What the host store keeps of a shard."""
    return ["state"] if task.shards[s].cast else ["param", "state"]


def note(task: Task, s: int, grad: bytes) -> bytes:
    """What a shard adds to the norms, at whatever place."""
    return digest(task.norm_bytes, "norm", task.name, s, grad)


def _batch(task: Task, step: int, m: int) -> bytes:
    return digest(task.batch_bytes, "batch", task.name, step, m)


def base(task: Task, s: int) -> bytes:
    """What nothing trains, the same for all tasks that have it in the same layers."""
    shard = task.shards[s]
    where = task.base, s, shard.first_layer, shard.end_layer, shard.base_bytes
    return digest(shard.base_bytes, "base", *where)


def first_values(task: Task, s: int) -> tuple[bytes, bytes]:
    shard = task.shards[s]
    state = digest(shard.state_bytes, "s", task.name, s)
    param = digest(shard.param_bytes, "p", task.name, s)
    return cast(task, s, state) if shard.cast else param, state


def keeps(task: Task, shard: int, microbatch: int) -> str:
    """How the shard keeps a microbatch's activations."""
    own = task.shards[shard]
    return "recompute" if microbatch in own.recomputed else own.activations


def reference(
    task: Task, rounds: int = ROUNDS, microbatches: Sequence[int] = ()
) -> tuple[Seen, dict[str, bytes]]:
    """What every op reads, and the final parameters and state, in plain sequential training.

    microbatches: of each round, where not all have as many."""
    seen: Seen = {}
    held = {s: first_values(task, s) for s in range(len(task.shards))}
    bases = [base(task, s) for s in held]
    last = len(task.shards) - 1
    for step in range(rounds):
        values = {s: bases[s] + param for s, (param, _) in held.items()}
        grads: dict[int, bytes] = {}
        for m in range(microbatches[step] if microbatches else task.microbatches):
            x = [_batch(task, step, m)]
            for s in range(last):
                _sees(seen, f"{task.name}.s{s}.F{m}", step, param=held[s][0], base=bases[s])
                seen[f"{task.name}.s{s}.F{m}", step, "x" if s else "batch"] = x[s]
                x.append(forward(task, s, values[s], x[s]))
            up = x[0]
            for s in range(last, -1, -1):
                name = f"{task.name}.s{s}.B{m}"
                _sees(seen, name, step, param=held[s][0], base=bases[s])
                seen[name, step, "x" if s else "batch"] = x[s]
                seen[name, step, "batch" if s == last else "dy"] = up
                if keeps(task, s, m) == "offload":
                    seen[name, step, "saved"] = packed(task, s, values[s], x[s])
                grad, up = backward(task, s, values[s], x[s], up)
                if grad:
                    grads[s] = _add(grads[s], grad) if s in grads else grad
        norm = bytes(task.norm_bytes)
        for s, grad in grads.items():
            norm = _add(norm, note(task, s, grad))
        for s, grad in grads.items():
            before = dict(zip(("param", "state"), held[s], strict=True))
            read = {role: before[role] for role in updated(task, s)} | {"grad": grad}
            read |= {"norm": norm} if norm else {}
            _sees(seen, f"{task.name}.s{s}.U0", step, **read)
            held[s] = update(task, s, *read.values())
    return seen, kept(task, held)


def _sees(seen: Seen, op: str, step: int, **read: bytes) -> None:
    """An op sees these, where they have bytes."""
    seen |= {(op, step, role): value for role, value in read.items() if value}


def kept(task: Task, held: Mapping[int, tuple[bytes, bytes]]) -> dict[str, bytes]:
    """What the host store has in the end, of values that have bytes."""
    final = {}
    for s, values in held.items():
        given = dict(zip(("param", "state"), values, strict=True))
        final |= {f"{task.name}.s{s}.{role}": given[role] for role in stored(task, s)}
        final[f"{task.base}.s{s}.base"] = base(task, s)
    return {name: value for name, value in final.items() if value}


def judged(task: Task) -> tuple[Seen, dict[str, bytes]]:
    """The same of a task that is only evaluated, batch after batch."""
    seen: Seen = {}
    held = {s: first_values(task, s) for s in range(len(task.shards))}
    for step in range(ROUNDS):
        for m in range(task.microbatches):
            x = batch = _batch(task, step, m)
            for s, (param, _) in held.items():
                name = f"{task.name}.s{s}.F{m}"
                _sees(seen, name, step, param=param, base=base(task, s))
                seen[name, step, "x" if s else "batch"] = x
                if s == len(held) - 1:
                    seen[name, step, "batch"] = batch
                else:
                    x = forward(task, s, base(task, s) + param, x)
    return seen, kept(task, held)


class Graph(NamedTuple):
    """What an op keeps: of which step, where it ran, the addresses it holds, its bytes; behind an
    I the gradient that its W is to add."""

    step: int
    stream: str
    params: tuple[int | None, ...]
    source: int
    bytes: int
    grad: bytes = b""


class Machine:
    """Memory of all spaces, the graphs that are alive, and the ops that act on them."""

    def __init__(self, plan: Plan, program: Program, buffers: Mapping[str, Buffer]) -> None:
        self.program = program
        self.graphs: dict[tuple[str, int, int], Graph] = {}
        self.buffers = buffers
        self.tasks = {task.name: task for task in plan.tasks}
        self.memory: dict[str, bytearray] = {}
        for buffer in buffers.values():
            room = self.memory.setdefault(buffer.space, bytearray())
            missing = buffer.offset + buffer.bytes - len(room)
            room.extend(digest(max(0, missing), "never written", buffer.space))
        for task in plan.tasks:
            for s in range(len(task.shards)):
                for name, value in kept(task, {s: first_values(task, s)}).items():
                    self.write(name, value)

    def read(self, buffer: str, size: int) -> bytes:
        b = self.buffers[buffer]
        need(size <= b.bytes, f"{buffer} is too small")
        return bytes(self.memory[b.space][b.offset : b.offset + size])

    def write(self, buffer: str, value: bytes) -> None:
        b = self.buffers[buffer]
        need(len(value) <= b.bytes, f"{buffer} is too small")
        value += digest(b.bytes - len(value), "padding", value)
        self.memory[b.space][b.offset : b.offset + b.bytes] = value

    def step(self, op: Op, step: int) -> dict[str, bytes]:
        """Run one op; what it read, by role."""
        name, task = op.name, self.tasks[op.name.task]
        self._reachable(op, name)
        self._reserve(op)
        sizes = _sizes(task, name)
        read: dict[str, bytes] = {}
        for role, buffer in op.reads.items():
            read[role] = self.read(buffer, sizes[role])
        params = read.get("base", b"") + read.get("param", b"")
        if name.kind == "P" and set(op.reads) == {"state"} and set(op.writes) == {"param"}:
            need(task.shards[name.number].cast, "has parameters of its own")
            made = {"param": cast(task, name.number, read["state"])}
        elif name.kind in "PSX":
            need(len(op.writes) == 1 and set(op.reads) <= set(op.writes), "not a copy")
            made = read or {"batch": _batch(task, step, name.index)}
        elif name.kind == "F" and self.program.evaluates:
            last = name.number == len(task.shards) - 1
            source = read["x" if name.number else "batch"]
            made = {} if last else {"y": forward(task, name.number, params, source)}
        elif name.kind == "F":
            source = read["x" if name.number else "batch"]
            made = {"y": forward(task, name.number, params, source)}
            if keeps(task, name.number, name.index) == "offload":
                made["saved"] = packed(task, name.number, params, source)
            self._keep(op, name, task, step)
        elif name.kind in "BI":
            self._take(op, name, task, step)
            up = read["batch" if name.number == len(task.shards) - 1 else "dy"]
            source = read["x" if name.number else "batch"]
            grad, dx = backward(task, name.number, params, source, up)
            made = {"grad": _add(read["grad"], grad) if "grad" in read else grad, "dx": dx}
            if name.kind == "I":
                self._leave(op, name, task, step, made.pop("grad"))
        elif name.kind == "W":
            grad = self._left(op, name, task, step)
            made = {"grad": _add(read["grad"], grad) if "grad" in read else grad}
        elif name.kind == "U":
            roles = *updated(task, name.number), "grad", *(["norm"] if task.norm_bytes else [])
            given = (read[role] if sizes[role] else b"" for role in roles)
            param, state = update(task, name.number, *given)
            made = {"param": param, "state": state}
        elif name.kind == "N":
            own = note(task, name.number, read["grad"])
            made = {"norm": _add(read["norm"], own) if "norm" in read else own}
        else:
            made = {"grad": _add(read["grad"], read["other"])}
        for role, buffer in op.writes.items():
            self.write(buffer, made[role])
        lost = {role for role, value in made.items() if value} - {"dx"} - set(op.writes)
        if name.kind == "U":
            lost &= {*updated(task, name.number)}
        need(name.kind not in "BIWUFRN" or not lost, "result is lost")
        return read

    def _graph(self, op: Op, name: OpName, task: Task, step: int) -> Graph | None:
        how = keeps(task, name.number, name.index)
        if how == "recompute":
            return None
        size = task.shards[name.number].saved_bytes if how == "saved" else 0
        return self._made(op, name, task, step, size)

    def _made(self, op: Op, name: OpName, task: Task, step: int, size: int) -> Graph:
        if keeps(task, name.number, name.index) == "offload":
            return Graph(step, op.stream, (), 0, size)
        source = op.reads["x" if name.number else "batch"]
        params = tuple(
            self.buffers[op.reads[role]].offset if role in op.reads else None
            for role in ("param", "base")
        )
        return Graph(step, op.stream, params, self.buffers[source].offset, size)

    def _leave(self, op: Op, name: OpName, task: Task, step: int, grad: bytes) -> None:
        need(name.number > 0, "nothing is left")
        made = self._made(op, name, task, step, task.shards[name.number].left_bytes)
        self.graphs[name.task, name.number, name.index] = made._replace(grad=grad)

    def _left(self, op: Op, name: OpName, task: Task, step: int) -> bytes:
        """What an I left, where that points to what this op reads."""
        found = self.graphs.pop((name.task, name.number, name.index), None)
        made = self._made(op, name, task, step, task.shards[name.number].left_bytes)
        need(found is not None and found.grad != b"", f"nothing is left for {op.id}")
        assert found is not None
        need(found._replace(grad=b"") == made, f"{op.id} has another graph")
        return found.grad

    def _keep(self, op: Op, name: OpName, task: Task, step: int) -> None:
        if graph := self._graph(op, name, task, step):
            self.graphs[name.task, name.number, name.index] = graph

    def _take(self, op: Op, name: OpName, task: Task, step: int) -> None:
        """A backward finds the graph of its forward, and everything where that graph points."""
        found = self.graphs.pop((name.task, name.number, name.index), None)
        need(found == self._graph(op, name, task, step), f"{op.id} has another graph")

    def _reserve(self, op: Op) -> None:
        if op.stream.endswith("compute"):
            reserve = self.program.memory[int(op.stream.split(".")[0])].reserve_bytes
            live = sum(g.bytes for g in self.graphs.values() if g.stream == op.stream)
            need(live + op.transient_bytes <= reserve, f"reserve is too small for {op.id}")

    def _reachable(self, op: Op, name: OpName) -> None:
        """Every stream reaches only some spaces."""
        here = "host" if op.stream.startswith("host") else op.stream.split(".")[0]
        reads = {self.buffers[n].space for n in op.reads.values()}
        writes = {self.buffers[n].space for n in op.writes.values()}
        need(reads <= {"host" if name.kind == "P" else here}, "reads out of reach")
        if name.kind == "X":
            need(here not in writes and "host" not in writes, "sends nowhere")
        else:
            need(writes <= {"host" if name.kind == "S" else here}, "writes out of reach")


def _sizes(task: Task, name: OpName) -> dict[str, int]:
    shard = task.shards[name.number]
    after = task.shards[name.number + 1].in_bytes if name.number + 1 < len(task.shards) else 0
    return {
        "param": shard.param_bytes,
        "base": shard.base_bytes,
        "state": shard.state_bytes,
        "grad": shard.grad_bytes,
        "other": shard.grad_bytes,
        "saved": shard.saved_bytes,
        "batch": task.batch_bytes,
        "x": shard.in_bytes,
        "dx": shard.in_bytes,
        "dy": after,
        "norm": task.norm_bytes,
    }
