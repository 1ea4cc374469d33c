"""What one task brings to a handmade program: ways to train, each written out op by op.

Sizes are tiny, and such that buffers lie without gaps between them. Edges are listed where another
stream is waited for; what a stream's own order gives is left out, as a planner would.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from plans.schema import Op, Shard, Task
from profiles.codec import ALIGNMENT
from profiles.schema import Workload

IN, BATCH, GRAD, STATE, SAVED = (k * ALIGNMENT for k in (1, 2, 2, 3, 1))
_US = {"F": 40, "B": 90, "U": 30, "P": 25, "S": 20, "X": 15, "R": 10, "N": 5}
TRANSIENT = 100

Update = Literal["host", "device"]


class Part(NamedTuple):
    """What one task brings to a program: its ops, device buffers and extra host buffers.

    `kept`: bytes of its graphs when most are alive.
    """

    task: Task
    buffers: dict[str, tuple[str, int]]  # name -> space, bytes
    enter: list[Op]
    round: list[Op]
    leave: list[Op]
    host: dict[str, int] = {}
    kept: int = 0


def op(
    name: str,
    stream: str,
    reads: Mapping[str, str],
    writes: Mapping[str, str],
    *after: str,
) -> Op:
    kind = name.split(".")[2][0]
    transient = TRANSIENT if kind in "FB" else 0
    return Op(name, stream, 0, _US[kind], after, dict(reads), dict(writes), transient)  # type: ignore[arg-type]


def copy(name: str, stream: str, role: str, source: str, target: str, *after: str) -> Op:
    return op(name, stream, {role: source}, {role: target}, *after)


def task(name: str, shards: int, microbatches: int, update: Update, steps: int) -> Task:
    return Task(
        name=name,
        workload=Workload("work.py:tasks", "0" * 64),
        steps=steps,
        batch=2 * microbatches,
        microbatch=2,
        microbatches=microbatches,
        batch_bytes=BATCH,
        ties=((0, 1),),
        shards=tuple(
            Shard(
                2 * k,
                2 * k + 2,
                update == "device",
                "recompute",
                update,
                (2 + k) * ALIGNMENT,
                GRAD,
                STATE,
                IN if k else 0,
                0,
                0,
            )
            for k in range(shards)
        ),
    )


def resident_copies(name: str, shard: int, device: int) -> tuple[list[Op], list[Op]]:
    """enter and leave of a resident shard whose buffers are `<task>.<role><shard>`."""
    item = f"{name}.s{shard}"
    enter, leave = [], []
    for serial, role in enumerate(("param", "state")):
        here, store = f"{name}.{role}{shard}", f"{item}.{role}"
        enter.append(copy(f"{item}.P{serial}", f"{device}.h2d", role, store, here))
        leave.append(copy(f"{item}.S{serial}", f"{device}.d2h", role, here, store))
    return enter, leave


def update(name: str, shard: int, device: int, *after: str) -> Op:
    """The update of a resident shard."""
    own = {role: f"{name}.{role}{shard}" for role in ("param", "state")}
    reads = {**own, "grad": f"{name}.grad{shard}"}
    return op(f"{name}.s{shard}.U0", f"{device}.compute", reads, own, *after)


def resident_buffers(of: Task, shard: int, device: int) -> dict[str, tuple[str, int]]:
    """Where a resident shard's parameters, state and gradients stay."""
    space, name = str(device), of.name
    return {
        f"{name}.param{shard}": (space, of.shards[shard].param_bytes),
        f"{name}.state{shard}": (space, STATE),
        f"{name}.grad{shard}": (space, GRAD),
    }


def resident_part(name: str, device: int = 0, steps: int = 4) -> Part:
    """One shard that stays on the device and is updated there; two microbatches."""
    of = task(name, 1, 2, "device", steps)
    enter, leave = resident_copies(name, 0, device)
    batch = f"{name}.batch"
    rounds = []
    for m in range(2):
        load = f"{batch}.P{m}"
        rounds.append(
            op(
                load,
                f"{device}.h2d",
                {},
                {"batch": batch},
                f"{name}.s0.B{1 - m}" + "@-1" * (m == 0),
            )
        )
        reads = {"param": f"{name}.param0", "batch": batch}
        if m:
            reads["grad"] = f"{name}.grad0"
        rounds.append(
            op(f"{name}.s0.B{m}", f"{device}.compute", reads, {"grad": f"{name}.grad0"}, load)
        )
    rounds.append(update(name, 0, device))
    buffers = {**resident_buffers(of, 0, device), batch: (str(device), BATCH)}
    return Part(of, buffers, enter, rounds, leave)


def pipeline_part(name: str) -> Part:
    """Two resident shards on two devices, boundaries and targets sent between them."""
    of = task(name, 2, 2, "device", 4)
    buffers = resident_buffers(of, 0, 0) | resident_buffers(of, 1, 1)
    enters, leaves = zip(*(resident_copies(name, k, k) for k in range(2)), strict=True)
    rounds: list[Op] = []
    for m in range(2):
        for d in range(2):
            buffers[f"{name}.batch{d}.{m}"] = str(d), BATCH
            buffers[f"{name}.x{d}.{m}"] = str(d), IN
        batch, x = (
            [f"{name}.batch{d}.{m}" for d in range(2)],
            [f"{name}.x{d}.{m}" for d in range(2)],
        )
        load, send = f"{name}.batch.P{m}", f"{name}.batch.X{m}"
        rounds.append(op(load, "0.h2d", {}, {"batch": batch[0]}, f"{name}.s0.B{m}@-1"))
        rounds.append(copy(send, "0.p2p", "batch", batch[0], batch[1], load))
        param = {"param": f"{name}.param0"}
        rounds.append(
            op(f"{name}.s0.F{m}", "0.compute", {**param, "batch": batch[0]}, {"y": x[0]}, load)
        )
        there, back = f"{name}.x1.X{m}", f"{name}.dx1.X{m}"
        rounds.append(copy(there, "0.p2p", "x", x[0], x[1], f"{name}.s0.F{m}"))
        grads = [{"grad": f"{name}.grad{k}"} for k in range(2)]
        add = grads if m else [{}, {}]
        reads = {"param": f"{name}.param1", "x": x[1], "batch": batch[1], **add[1]}
        writes = {**grads[1], "dx": x[1]}
        rounds.append(op(f"{name}.s1.B{m}", "1.compute", reads, writes, there, send))
        rounds.append(copy(back, "1.p2p", "dx", x[1], x[0], f"{name}.s1.B{m}"))
    for m in range(2):
        grad = {"grad": f"{name}.grad0"}
        reads = {"param": f"{name}.param0", "batch": f"{name}.batch0.{m}", "dy": f"{name}.x0.{m}"}
        reads |= grad if m else {}
        rounds.append(op(f"{name}.s0.B{m}", "0.compute", reads, grad, f"{name}.dx1.X{m}"))
    rounds += [update(name, 0, 0), update(name, 1, 1)]
    return Part(of, buffers, [*enters[0], *enters[1]], rounds, [*leaves[0], *leaves[1]])


def parallel_part(name: str) -> Part:
    """One shard on two devices with a microbatch each; device 0 merges, updates and sends back."""
    of = task(name, 1, 2, "device", 4)
    item = f"{name}.s0"
    buffers = resident_buffers(of, 0, 0) | {
        f"{name}.other": ("0", GRAD),
        f"{name}.batch0": ("0", BATCH),
        f"{name}.batch1": ("1", BATCH),
        f"{name}.param1": ("1", of.shards[0].param_bytes),
        f"{name}.grad1": ("1", GRAD),
    }
    enter, leave = resident_copies(name, 0, 0)
    enter.append(copy(f"{item}.P2", "1.h2d", "param", f"{item}.param", f"{name}.param1"))
    rounds = []
    for d in range(2):
        load = f"{name}.batch.P{d}"
        rounds.append(op(load, f"{d}.h2d", {}, {"batch": f"{name}.batch{d}"}, f"{item}.B{d}@-1"))
        reads = {"param": f"{name}.param{d}", "batch": f"{name}.batch{d}"}
        fresh = [f"{item}.X1@-1"] if d else []
        writes = {"grad": f"{name}.grad{d}"}
        rounds.append(op(f"{item}.B{d}", f"{d}.compute", reads, writes, load, *fresh))
    grad, other = f"{name}.grad0", f"{name}.other"
    rounds.append(copy(f"{item}.X0", "1.p2p", "grad", f"{name}.grad1", other, f"{item}.B1"))
    merge = {"grad": grad, "other": other}
    rounds.append(op(f"{item}.R0", "0.compute", merge, {"grad": grad}, f"{item}.X0"))
    rounds.append(update(name, 0, 0))
    own, there = f"{name}.param0", f"{name}.param1"
    rounds.append(copy(f"{item}.X1", "0.p2p", "param", own, there, f"{item}.U0"))
    return Part(of, buffers, enter, rounds, leave)


def offloaded_part(name: str) -> Part:
    """Two resident shards; boundaries wait in the host store between forward and backward."""
    of = task(name, 2, 2, "device", 4)
    buffers = resident_buffers(of, 0, 0) | resident_buffers(of, 1, 0)
    buffers |= {f"{name}.out": ("0", IN), f"{name}.in": ("0", IN)}
    enters, leaves = zip(*(resident_copies(name, k, 0) for k in range(2)), strict=True)
    rounds = []
    for m in range(2):
        buffers[f"{name}.batch.{m}"] = "0", BATCH
        load, batch = f"{name}.batch.P{m}", {"batch": f"{name}.batch.{m}"}
        rounds.append(op(load, "0.h2d", {}, batch, f"{name}.s0.B{m}@-1"))
        reads = {"param": f"{name}.param0", **batch}
        free = [f"{name}.x1.S0"] if m else []  # F0 comes after the last round's U0, after its S1
        writes = {"y": f"{name}.out"}
        rounds.append(op(f"{name}.s0.F{m}", "0.compute", reads, writes, load, *free))
        spill, store = f"{name}.x1.S{m}", f"{name}.x1.{m}"
        rounds.append(copy(spill, "0.d2h", "x", f"{name}.out", store, f"{name}.s0.F{m}"))
    for m in range(2):
        x, spill, fetch = f"{name}.in", f"{name}.x1.S{m}", f"{name}.x1.P{m}"
        empty = f"{name}.s0.B{1 - m}" + "@-1" * (m == 0)
        rounds.append(copy(fetch, "0.h2d", "x", f"{name}.x1.{m}", x, spill, empty))
        for k in (1, 0):
            reads = {"param": f"{name}.param{k}", "batch": f"{name}.batch.{m}"}
            reads["x" if k else "dy"] = x
            writes = {"grad": f"{name}.grad{k}", **({"dx": x} if k else {})}
            reads |= {"grad": f"{name}.grad{k}"} if m else {}
            rounds.append(op(f"{name}.s{k}.B{m}", "0.compute", reads, writes, fetch))
    rounds += [update(name, 1, 0), update(name, 0, 0)]
    host = {f"{name}.x1.{m}": IN for m in range(2)}
    return Part(of, buffers, [*enters[0], *enters[1]], rounds, [*leaves[0], *leaves[1]], host)
