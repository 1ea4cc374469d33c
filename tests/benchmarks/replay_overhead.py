"""What replaying costs per op when the ops themselves do nothing.

    python -m tests.benchmarks.replay_overhead [--rounds 300]

A hand-made timetable is replayed with every op's work taken out, so that what is left is waiting
at gates, marks, the log and the threads' switching. Prints µs per op of the whole run (all
streams share one interpreter), the median over the gaps between the ops of one stream, how much
memory later rounds take beside those before them, and what it costs to let a layer's 16 parameters
be views of another slot.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import handmade
from support.chains import tasks_for
from support.fit import fit, lasting

from executor import run
from executor.devices.device import aligned
from executor.driver import Options
from executor.records.folder import RunFolder
from executor.replay import ops
from executor.replay.ops import Work
from executor.replay.task_state import TaskState
from executor.shards.shard import Shard
from plans import runlog


@contextmanager
def nothing_to_do(**handlers: Callable[[Work, int], None]) -> Iterator[None]:
    """Ops that return at once, or do what these handlers do."""
    kept, settle, keep = dict(ops._HANDLERS), TaskState.settle, RunFolder.keep
    ops._HANDLERS.update({kind: lambda work, step: None for kind in kept} | handlers)
    TaskState.settle = lambda self, step: None  # type: ignore[method-assign]
    RunFolder.keep = lambda self, task, step, at_us: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        ops._HANDLERS.update(kept)
        TaskState.settle, RunFolder.keep = settle, keep  # type: ignore[method-assign]


def measure(name: str, rounds: int) -> tuple[str, int, float, float]:
    """The plan's name, ops, µs per op of the run, and the median gap within a stream."""
    tasks = tasks_for(handmade.PLANS[name]())
    plan = lasting(fit(handmade.PLANS[name](), tasks), rounds)
    count = rounds * len(plan.programs[0].round)
    with TemporaryDirectory() as folder, nothing_to_do():
        start = time.perf_counter()
        run(plan, tasks, Options(folder=Path(folder)))
        spent = time.perf_counter() - start
        read = runlog.load(folder)
    gaps: list[int] = []
    streams = {op.id: op.stream for op in plan.programs[0].round}
    last: dict[str, int] = {}
    for op in sorted(read.ops, key=lambda op: op.start_us):
        stream = streams.get(op.op)
        if stream is None:
            continue
        if stream in last:
            gaps.append(op.start_us - last[stream])
        last[stream] = op.end_us
    return name, count, 1e6 * spent / count, median(gaps)


def grown(rounds: int) -> int:
    """Bytes of resident memory that a run of so many real rounds adds to one of a tenth."""
    tasks = tasks_for(handmade.PLANS["streamed"]())
    plan = fit(handmade.PLANS["streamed"](), tasks)
    run(lasting(plan, rounds // 10), tasks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(lasting(plan, rounds), tasks)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def binding_us(parameters: int = 16, times: int = 5000) -> float:
    """Median µs of binding a layer of so many parameters to one of two slots in turn."""
    layer = torch.nn.ParameterList(torch.zeros(8, 8) for _ in range(parameters))
    shard = Shard([layer], torch.optim.SGD)
    slots = [aligned(shard.param_bytes) for _ in range(2)]
    spent = []
    for number in range(times):
        start = time.perf_counter_ns()
        shard.parameters.bind(slots[number % 2])
        spent.append(time.perf_counter_ns() - start)
    return median(spent) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'plan':12} {'ops':>8} {'µs per op':>10} {'median gap µs':>14}")
    for name in ("resident", "streamed", "packed", "state"):
        measure(name, 50)
        print("{:12} {:8} {:10.1f} {:14.1f}".format(*measure(name, arguments.rounds)))
    print(f"binding a layer of 16 parameters to another slot: {binding_us():.1f} µs")
    print(f"peak memory grows by {grown(2000)} bytes from 200 to 2,000 rounds")


if __name__ == "__main__":
    main()
