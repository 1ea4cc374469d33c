"""Plans of one task on several devices, to be drawn and described: 1F1B as papers have it, sends
between stages, replicas whose gradients meet at an owner. Times are those of `support.retime`.

They have no parameters to move and no state, so the checker would refuse them.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace
from support.retime import retimed

from plans.prediction import Prediction, Solver
from plans.schema import Buffer, Device, Host, Memory, Op, Plan, Program, Segment, Shard, Task
from profiles.schema import Emulation, Workload

MIB = 1 << 20
US = {"F": 1_000, "B": 2_000, "I": 1_100, "W": 900, "U": 1_500, "X": 120, "R": 300}

Pass = tuple[str, int, int]  # kind, shard, microbatch


def one_f_one_b(depth: int, stage: int, chunks: int, mine: Sequence[int]) -> list[Pass]:
    """The passes of a stage in the (interleaved) 1F1B order, for these microbatches."""
    groups = [mine[first : first + depth] for first in range(0, len(mine), depth)]
    width = depth if chunks > 1 else len(mine)
    groups = groups if chunks > 1 else [mine]
    forwards = [("F", c * depth + stage, m) for g in groups for c in range(chunks) for m in g]
    backwards = [
        ("B", c * depth + stage, m) for g in groups for c in reversed(range(chunks)) for m in g
    ]
    ahead = (depth - stage - 1) * 2 + (chunks - 1) * width if chunks > 1 else depth - stage - 1
    ahead = min(ahead, len(forwards))
    steady = zip(forwards[ahead:], backwards, strict=False)
    pairs = [one for pair in steady for one in pair]
    return [*forwards[:ahead], *pairs, *backwards[len(forwards) - ahead :]]


def plan(
    depth: int = 4,
    microbatches: int = 8,
    *,
    replicas: int | Sequence[int] = 1,
    chunks: int = 1,
    split: bool = False,
    rounds: int = 50,
    host: bool = False,
    emulated: bool = False,
) -> Plan:
    """A task `a` of depth * chunks shards. replicas: of each stage. split: backwards are I, and W
    two of them later. host: shards are updated there."""
    counts = [replicas] * depth if isinstance(replicas, int) else list(replicas)
    firsts = [sum(counts[:stage]) for stage in range(depth)]

    def at(shard: int, microbatch: int) -> int:
        stage = shard % depth
        return firsts[stage] + microbatch % counts[stage]

    last = depth * chunks - 1
    passes = _compute(depth, microbatches, counts, chunks, split=split)
    ops = [op for one in passes for op in _with_sends(one, at, last)]
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
    return retimed(_around(task, _program(ops, sum(counts)), rounds, emulated=emulated))


def _program(ops: Sequence[Op], devices: int) -> Program:
    """A program of a round with these ops; the first device needs most memory."""
    names = dict.fromkeys(name for op in ops for name in op.writes.values())
    return Program(
        name="a",
        memory=tuple(Memory((9 - 8 * d // devices) * MIB, MIB) for d in range(devices)),
        tasks=("a",),
        enter_us=0,
        period_us=0,
        round_us=0,
        leave_us=0,
        buffers=tuple(Buffer(name, name.rpartition("@")[2], 0, MIB) for name in names),
        enter=(),
        round=tuple(ops),
        leave=(),
    )


def _around(task: Task, program: Program, rounds: int, *, emulated: bool) -> Plan:
    """The plan of one segment; nothing is predicted yet."""
    emulation = Emulation(10**9, 10**9, 10) if emulated else None
    return Plan(
        inputs={"profile": "b" * 64},
        devices=(Device("box", "cpu", 16 * MIB, 1, emulation),) * program.devices,
        host=Host(1 << 30, ()),
        tasks=(task,),
        programs=(program,),
        segments=(Segment("a", tuple(range(program.devices)), rounds, 0, 0),),
        prediction=Prediction(0, ()),
        solver=Solver("gantry", 0, "complete", 1),
    )


def _op(name: str, stream: str, after: Sequence[str] = (), **writes: str) -> Op:
    """An op that writes buffers by role; `@1` behind a buffer's name: it is on device 1."""
    return Op(name, stream, 0, US[name.split(".")[2][0]], tuple(after), {}, writes)


def _compute(
    depth: int, microbatches: int, counts: Sequence[int], chunks: int, *, split: bool
) -> Iterator[Op]:
    """The passes of all devices, without what they wait for."""
    device = 0
    for stage, count in enumerate(counts):
        for replica in range(count):
            mine = range(replica, microbatches, count)
            passes = one_f_one_b(depth, stage, chunks, mine)
            for kind, shard, m in _halved(passes) if split else passes:
                grad = {"grad": f"a.grad{shard}@{device}"} if kind in "BW" else {}
                yield _op(f"a.s{shard}.{kind}{m}", f"{device}.compute", **grad)
            device += 1


def _halved(passes: Sequence[Pass]) -> list[Pass]:
    """Backwards as I, and W once two more have come."""
    found: list[Pass] = []
    waiting: list[Pass] = []
    for kind, shard, m in passes:
        if kind == "F":
            found.append((kind, shard, m))
            continue
        found.append(("I", shard, m))
        waiting.append(("W", shard, m))
        if len(waiting) > 2:
            found.append(waiting.pop(0))
    return found + waiting


def _with_sends(op: Op, at: Callable[[int, int], int], last: int) -> Iterator[Op]:
    """A pass with its edges, and the sends of what it makes for another device."""
    _, item, index = op.id.split(".")
    shard, kind, m = int(item[1:]), index[0], int(index[1:])
    here = int(op.stream.partition(".")[0])
    back = "I" if kind in "IW" else "B"
    after = []
    if kind == "F" and shard:
        crosses = at(shard - 1, m) != here
        after = [f"a.x{shard}.X{m}" if crosses else f"a.s{shard - 1}.F{m}"]
    elif kind in "BI" and shard < last:
        crosses = at(shard + 1, m) != here
        after = [f"a.dx{shard + 1}.X{m}" if crosses else f"a.s{shard + 1}.{back}{m}"]
    elif kind != "F":
        after = [f"a.s{shard}.{'F' if kind in 'BI' else 'I'}{m}"]
    yield replace(op, after=tuple(after))
    if kind == "F" and shard < last and (there := at(shard + 1, m)) != here:
        yield _op(f"a.x{shard + 1}.X{m}", f"{here}.p2p", [op.id], x=f"a.x{shard + 1}.{m}@{there}")
    if kind in "BI" and shard and (there := at(shard - 1, m)) != here:
        yield _op(f"a.dx{shard}.X{m}", f"{here}.p2p", [op.id], dx=f"a.dx{shard}.{m}@{there}")


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
