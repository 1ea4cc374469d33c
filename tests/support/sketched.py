"""Plans of one task on several devices, to be drawn and described: 1F1B as papers have it, sends
between stages, replicas whose gradients meet at an owner. Times are those of `support.retime`.

They have no parameters to move and no state, so the checker would refuse them.
"""

from collections.abc import Iterator, Mapping, Sequence

from support.retime import around, retimed, untimed

from planner.orders import NAMED, Cost, Pass, Pipeline
from plans.schema import Buffer, Device, Memory, Op, Plan, Shard, Task
from profiles.schema import Workload

MIB = 1 << 20
US = {"F": 1_000, "B": 2_000, "I": 1_100, "W": 900, "U": 1_500, "X": 120, "R": 300}


def plan(
    depth: int = 4,
    microbatches: int = 8,
    *,
    replicas: int | Sequence[int] = 1,
    chunks: int = 1,
    split: bool = False,
    rounds: int = 50,
    host: bool = False,
) -> Plan:
    """A task `a` of depth * chunks shards. replicas: of each stage. split: backwards are I and W,
    in the order of zero bubbles. host: shards are updated there."""
    counts = [replicas] * depth if isinstance(replicas, int) else list(replicas)
    firsts, last = [sum(counts[:stage]) for stage in range(depth)], depth * chunks - 1
    stages = [tuple(range(at, at + count)) for at, count in zip(firsts, counts, strict=True)]
    input_us, weight_us = (US["I"], US["W"]) if split else (US["B"], 0)
    costs = [Cost(US["F"], input_us, weight_us, hop=US["X"] if k else 0) for k in range(last + 1)]
    order = NAMED["zero-bubble" if split else "1f1b"](
        Pipeline.alike(costs, sum(counts), microbatches), tuple(stages * chunks)
    )
    where = {one[1:]: device for device, own in enumerate(order) for one in own}
    passes = ((device, one) for device, own in enumerate(order) for one in own)
    ops = [op for device, one in passes for op in _with_sends(device, one, where, last)]
    ops += _updates(chunks, counts, microbatches, split=split, host=host)
    place = "host" if host else "device"
    shards = tuple(
        Shard(k, k + 1, True, "recompute", place, *[MIB] * 3, 0, 0, 0) for k in range(last + 1)
    )
    task = Task(
        name="a",
        workload=Workload("work.py:tasks", "a" * 64),
        steps=rounds,
        batch=microbatches,
        microbatch=1,
        microbatches=microbatches,
        batch_bytes=1024,
        shards=shards,
    )
    names = dict.fromkeys(name for op in ops for name in op.writes.values())
    buffers = (Buffer(name, name.rpartition("@")[2], 0, MIB) for name in names)
    count = sum(counts)  # the first device needs most memory
    memory = (Memory((9 - 8 * device // count) * MIB, MIB) for device in range(count))
    program = untimed("a", "a", memory, (), ops, (), buffers=buffers)
    runs = [("a", tuple(range(count)), rounds)]
    return retimed(around([task], [program], runs, Device("box", "cpu", 16 * MIB, 1)))


def _op(name: str, stream: str, after: Sequence[str] = (), **writes: str) -> Op:
    """An op that writes buffers by role; `@1` behind a buffer's name: it is on device 1."""
    return Op(name, stream, 0, US[name.split(".")[2][0]], tuple(after), {}, writes)


def _with_sends(
    here: int, one: Pass, where: Mapping[tuple[int, int], int], last: int
) -> Iterator[Op]:
    """A pass of a device, and the sends of what it makes for another one."""
    kind, shard, m = one
    item, back = f"a.s{shard}", "I" if kind in "IW" else "B"
    up, down = (where.get((other, m), here) for other in (shard - 1, shard + 1))
    after = []
    if kind == "F" and shard:
        after = [f"a.x{shard}.X{m}" if up != here else f"a.s{shard - 1}.F{m}"]
    elif kind in "BI" and shard < last:
        after = [f"a.dx{shard + 1}.X{m}" if down != here else f"a.s{shard + 1}.{back}{m}"]
    elif kind != "F":
        after = [f"{item}.{'F' if kind in 'BI' else 'I'}{m}"]
    grad = {"grad": f"a.grad{shard}@{here}"} if kind in "BW" else {}
    made = _op(f"{item}.{kind}{m}", f"{here}.compute", after, **grad)
    yield made
    if kind == "F" and down != here:
        yield _op(f"a.x{shard + 1}.X{m}", f"{here}.p2p", [made.id], x=f"a.x{shard + 1}.{m}@{down}")
    if kind in "BI" and up != here:
        yield _op(f"a.dx{shard}.X{m}", f"{here}.p2p", [made.id], dx=f"a.dx{shard}.{m}@{up}")


def _updates(
    chunks: int, counts: Sequence[int], microbatches: int, *, split: bool, host: bool
) -> Iterator[Op]:
    """Gradients of replicas to their owner, summed there; the update; new parameters back."""
    depth = len(counts)
    for shard in range(depth * chunks):
        stage = shard % depth
        first, count = sum(counts[:stage]), counts[stage]
        owner, item, summed = shard // depth % count, f"a.s{shard}", []
        others = [replica for replica in range(count) if replica != owner]
        here, grad = first + owner, f"a.g{shard}@{first + owner}"
        for serial, other in enumerate(others):
            last = range(other, microbatches, count)[-1]
            send, after = f"{item}.X{serial}", [f"{item}.{'W' if split else 'B'}{last}"]
            yield _op(send, f"{first + other}.p2p", after, grad=f"a.o{shard}.{serial}@{here}")
            yield _op(f"{item}.R{serial}", f"{here}.compute", [send], grad=grad)
            summed = [f"{item}.R{serial}"]
        last = range(owner, microbatches, count)[-1]
        done = [*summed, f"{item}.{'W' if split else 'B'}{last}"]
        stream = f"host.{here}" if host else f"{here}.compute"
        yield _op(f"{item}.U0", stream, done, grad=grad)
        for serial, other in enumerate(others, len(others)):
            own = f"a.p{shard}@{first + other}"
            yield _op(f"{item}.X{serial}", f"{here}.p2p", [f"{item}.U0"], param=own)
