"""What replaying costs in two processes: per op when the ops themselves do nothing, and per X that
goes from one process to the other.

    python -m tests.benchmarks.processes [--rounds 1000]

It starts itself under torchrun. First hand-made timetables on two devices, with every op's work
taken out: µs per op of the whole run in one process, and in two. Then X of 1 KiB, 1 MiB and 64 MiB,
which are all that a timetable does, into four buffers in turn: µs per X beside that of a bare loop
of dist.send and dist.recv over as many buffers, medians of three turns. Exit code 1 if an X of 1
MiB takes more than 1.3 times as long.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import handmade
from support.chains import tasks_for
from support.edges import linked
from support.fit import RESERVE, fit, lasting, sized
from support.parts import op
from support.together import Asked

from executor import processes, run
from executor.distributed import worker
from executor.distributed.values import Parcel
from executor.driver import Options
from executor.numerics import Layout, hold
from executor.replay.ops import Work
from executor.workload import Content
from plans import runlog
from plans.schema import Op, Plan, Task
from profiles import console
from profiles.units import show_bytes
from tests.benchmarks.replay_overhead import nothing_to_do

DEAR, AT = 1.3, 1 << 20
ROUNDS = {1 << 10: 300, AT: 150, 64 << 20: 6}  # of four X of so many bytes
BUFFERS, TURNS = 4, 3


class Row(NamedTuple):
    """What was replayed, µs of each op or X, and µs of what it is compared with."""

    name: str
    us: float
    beside_us: float

    @property
    def ratio(self) -> float:
        return self.us / self.beside_us


def leads() -> bool:
    return os.environ["RANK"] == "0"


def layout() -> Layout:
    return hold(torch.zeros(1)).layout


def forward(work: Work, step: int) -> None:
    work.feed.boundary(work.name.number + 1, work.writes["y"], layout())


def backward(work: Work, step: int) -> None:
    work.task.gradients[work.name.number, work.name.index] = ()


def load(work: Work, step: int) -> None:
    if work.name.item == "batch":
        work.feed.contents.note(work.writes["batch"], Content((layout(), layout())))


def replayed(plan: Plan, *, alone: bool) -> tuple[float, runlog.RunLog] | None:
    """Seconds of the run, and its log; None where another process leads it, or does it `alone`."""
    if alone and not leads():
        return None
    found = []
    parcel = mock.patch.object(
        worker, "parcel", lambda task, step, *_: Parcel(task.plan.name, step, b"", None, {})
    )
    quiet = nothing_to_do(F=forward, B=backward, P=load)  # but what an X behind them tells of
    with TemporaryDirectory() as folder, quiet, parcel:
        asked = Asked(plan, tasks_for(plan), Options(folder=Path(folder)))

        def finish(given: processes.Given, train: processes.Train) -> int:
            start = time.perf_counter()
            train(*given)
            found.append((time.perf_counter() - start, runlog.load(folder)))
            return 0

        given = asked.given(lambda *_: None)
        if finish(given, run) if alone else processes.main(asked, finish):
            sys.exit(1)
    return found[0] if found else None


def overhead(name: str, rounds: int) -> Iterator[Row]:
    """µs per op in two processes, beside those in one."""
    made = handmade.PLANS[name]()
    plan = lasting(fit(made, tasks_for(made)), rounds)
    count = rounds * len(plan.programs[0].round)
    found = [replayed(plan, alone=alone) for alone in (True, False)]
    if found[0] and found[1]:
        alone, together = (1e6 * one[0] / count for one in found if one)
        yield Row(name, together, alone)


def widened(plan: Plan, in_bytes: int) -> Plan:
    """A fitted plan whose boundaries have so many bytes."""

    def wide(task: Task) -> Task:
        first, *others = task.shards
        return replace(task, shards=(first, *(replace(s, in_bytes=in_bytes) for s in others)))

    return sized(replace(plan, tasks=tuple(map(wide, plan.tasks))), RESERVE, None)


def one_way(size: int) -> Plan:
    """A timetable that makes boundaries of so many bytes, sends them and reads them; it trains
    nothing."""
    made = handmade.pipeline()
    plan = widened(fit(made, tasks_for(made)), size)
    program, (task,) = plan.programs[0], plan.tasks
    first = next(b for b in program.buffers if b.name == f"{task.name}.x0.0")
    buffers = [b for b in program.buffers if ".x" not in b.name]
    ends = [memory.slab_bytes for memory in program.memory]
    rounds: list[Op] = []
    for m in range(BUFFERS):
        names = [f"{task.name}.x{d}.{m}" for d in range(2)]
        buffers += [
            replace(first, name=name, space=str(d), offset=ends[d] + m * first.bytes)
            for d, name in enumerate(names)
        ]
        make, send, read = (f"{task.name}.{x}{m}" for x in ("s0.F", "x1.X", "s1.B"))
        rounds += [
            op(make, "0.compute", {}, {"y": names[0]}),
            op(send, "0.p2p", {"x": names[0]}, {"x": names[1]}),
            op(read, "1.compute", {"x": names[1]}, {"dx": names[1]}),
        ]
    memory = [
        replace(one, slab_bytes=one.slab_bytes + BUFFERS * first.bytes) for one in program.memory
    ]
    changed = replace(program, buffers=tuple(buffers), memory=tuple(memory), round=linked(rounds))
    shards = replace(task, microbatches=BUFFERS)
    return lasting(replace(plan, programs=(changed,), tasks=(shards,)), ROUNDS[size])


def crossing(size: int) -> Iterator[float]:
    """µs of an X of so many bytes."""
    if found := replayed(one_way(size), alone=False):
        ends = sorted(line.end_us for line in found[1].ops if ".X" in line.op)
        yield (ends[-1] - ends[0]) / (len(ends) - 1)


def bare(size: int, turn: int) -> Iterator[float]:
    """µs of a dist.send and a dist.recv of so many bytes."""
    store, rank, count = next(rendezvous("env://"))
    name = PrefixStore(f"bare {size} {turn}", store)
    dist.init_process_group("gloo", store=name, rank=rank, world_size=count)
    flats = torch.zeros(BUFFERS, size, dtype=torch.uint8)
    number = BUFFERS * ROUNDS[size]
    go = [dist.recv, dist.send][rank]
    for k in range(number + 1):
        if k == 1:
            start = time.perf_counter()
        if rank:
            dist.recv(flats[k % BUFFERS], 0)
        else:
            dist.send(flats[k % BUFFERS], 1)
    go(flats[0, :1], 1 - rank)
    spent = time.perf_counter() - start
    dist.destroy_process_group()
    if leads():
        yield 1e6 * spent / number


def crossings(size: int) -> Iterator[Row]:
    both = [(*crossing(size), *bare(size, turn)) for turn in range(TURNS)]
    if leads():
        ours, theirs = zip(*both, strict=True)
        yield Row(f"X of {show_bytes(size)}", median(ours), median(theirs))


def table(found: Sequence[Row]) -> str:
    head = ("µs per op, or X", "two processes", "one, or a bare loop", "ratio")
    lines = [
        (row.name, f"{row.us:.1f}", f"{row.beside_us:.1f}", f"{row.ratio:.2f}") for row in found
    ]
    return "\n".join(console.columns([head, *lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="of ops that do nothing")
    options = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        sys.exit(subprocess.call([*start, "-m", "tests.benchmarks.processes", *sys.argv[1:]]))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rows = [row for name in ("pipeline", "parallel") for row in overhead(name, options.rounds)]
    dear = [row for size in ROUNDS for row in crossings(size)]
    if leads():
        print(table([*rows, *dear]))
    sys.exit(any(row.ratio > DEAR for row in dear if row.name.endswith("1.0 MiB")))


if __name__ == "__main__":
    main()
