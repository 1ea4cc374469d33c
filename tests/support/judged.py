"""Plans of `support.texted` whose task is evaluated on samples of every length, and their loops."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from support.retime import retimed
from support.texted import MOST, VOCABULARY, Packed, Parts, joined, packed
from torch import Tensor

from executor import Evaluation
from plans import prove, samples
from plans.ops import OpKind, OpName
from plans.order import due_of
from plans.schema import Buffer, Lengths, Memory, Op, Program, Segment, Task
from plans.timing import Runs, part
from profiles import schema
from profiles.codec import align
from profiles.lengths import describe, held_out

HELD = (1 + np.random.default_rng(5).integers(0, 100, 17)).tolist()
EVERY, ROUNDS, EACH = 2, 2, 2  # EACH: microbatches of each device in a round


def held(numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Other texts than those that are trained on."""
    made = []
    for n in numbers:
        generator = torch.Generator().manual_seed(1000 + n)
        text = torch.randint(VOCABULARY, (HELD[n] + 1,), generator=generator)
        made.append((text[:-1], text[1:]))
    return made


def judged(name: str, kinds: Sequence[Sequence[int]], runs: Runs, **more: object) -> Packed:
    """A handmade plan as of `packed`, that evaluates after every second step, on all its devices,
    with samples in microbatches at random."""
    own = Evaluation(EVERY, held, lengths=HELD, weights=more.pop("judged_weights", None))
    made = packed(name, kinds, runs, evaluate=own, **more)
    (task,), (program,), (segment,) = made.plan.tasks, made.plan.programs, made.plan.segments
    row = _row(ROUNDS * EACH * program.devices)
    digest = samples.write(samples.table_path(made.path, held_out("a")), [row])
    said = describe(HELD)
    task = replace(
        task,
        evaluation=schema.Evaluation(EVERY, ROUNDS),
        evaluation_lengths=Lengths(said.sha256, said.samples, digest),
        microbatches=max(task.microbatches, EACH * program.devices),
    )
    judge = _program(task, program)
    slab = max(one.slab_bytes for one in judge.memory)
    budgets = [replace(d, budget_bytes=d.budget_bytes + slab) for d in made.plan.devices]
    plan = replace(
        made.plan,
        devices=tuple(budgets),
        tasks=(task,),
        programs=(program, judge),
        segments=tuple(_segments(task, segment, judge)),
    )
    plan = retimed(plan)
    prove(plan)
    return made._replace(plan=plan)


def _row(count: int) -> NDArray[np.uint16]:
    """Some of so many microbatches for each sample, such that each has room for its samples."""
    rng = np.random.default_rng(3)
    while True:
        row = rng.integers(0, count, len(HELD))
        if np.bincount(row, HELD, count).max() <= MOST:
            return row.astype(np.uint16)


def _segments(task: Task, whole: Segment, judge: Program) -> Iterator[Segment]:
    first = 0
    for step in due_of(task):
        kinds = part(whole.kinds, first, step - first)
        yield replace(whole, rounds=step - first, kinds=kinds)
        yield replace(whole, program=judge.name, rounds=ROUNDS, kinds=())
        first = step
    if left := task.steps - first:
        yield replace(whole, rounds=left, kinds=part(whole.kinds, first, left))


def _program(task: Task, like: Program) -> Program:
    """The whole model on every device, with microbatches of its own."""
    buffers, enter, rounds, memory = list[Buffer](), list[Op](), list[Op](), list[Memory]()
    for d, one in enumerate(like.memory):
        mine = range(d * EACH, (d + 1) * EACH)
        sizes = {f"{d}.s{k}": shard.param_bytes for k, shard in enumerate(task.shards)}
        sizes |= {f"{d}.x{k}": shard.in_bytes for k, shard in enumerate(task.shards) if k}
        sizes |= {f"{d}.batch{m}": task.batch_bytes for m in mine}
        end = 0
        for name, size in sizes.items():
            buffers.append(Buffer(name, str(d), end, align(size)))
            end += align(size)
        memory.append(Memory(end, one.reserve_bytes))
        for k in range(len(task.shards)):
            name = str(OpName("a", "s", k, OpKind.PREFETCH, d))
            there, here = {"param": f"a.s{k}.param"}, {"param": f"{d}.s{k}"}
            enter.append(Op(name, f"{d}.h2d", 0, 10, (), there, here))  # type: ignore[arg-type]
        for m in mine:
            rounds += _microbatch(d, m, len(task.shards))
    return Program(
        name="solo.eval",
        memory=tuple(memory),
        tasks=("a",),
        enter_us=0,
        period_us=0,
        round_us=0,
        leave_us=0,
        buffers=tuple(buffers),
        enter=tuple(enter),
        round=tuple(rounds),
        leave=(),
        evaluates=True,
        tokens=(MOST,) * len(like.memory) * EACH,
    )


def _microbatch(d: int, m: int, shards: int) -> Iterator[Op]:
    """Its batch comes when the one before it is done with; each shard follows."""
    batch = str(OpName("a", "batch", 0, OpKind.PREFETCH, m))
    last = str(OpName("a", "s", shards - 1, OpKind.FORWARD, m))
    where = {"batch": f"{d}.batch{m}"}
    yield Op(batch, f"{d}.h2d", 0, 10, (f"{last}@-1",), {}, where)  # type: ignore[arg-type]
    for k in range(shards):
        reads = {"param": f"{d}.s{k}"} | ({"x": f"{d}.x{k}"} if k else {})
        reads |= where if k in (0, shards - 1) else {}
        writes = {"y": f"{d}.x{k + 1}"} if k < shards - 1 else {}
        name, after = str(OpName("a", "s", k, OpKind.FORWARD, m)), (batch,) if k == 0 else ()
        yield Op(name, f"{d}.compute", 0, 20, after, reads, writes)  # type: ignore[arg-type]


def held_alone() -> Parts:
    """Each sample of an evaluation by itself."""
    return (part for n in range(len(HELD)) for part in joined([held([n])[0]]))


def held_packed(made: Packed) -> Parts:
    """The microbatches of a plan, round by round; of those without samples nothing is added."""
    row = np.fromfile(samples.table_path(made.path, held_out("a")), np.uint16)
    for m in range(int(row.max()) + 1):
        yield from joined(held(np.flatnonzero(row == m).tolist()))
