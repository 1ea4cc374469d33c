"""What a replay costs where nothing has to move: a step of an all-resident plan, and of a loop.

    python tests/benchmarks/plain_ratio.py [gpt|mlp ...] [--rounds N]

Each model is profiled, planned with more memory than it needs, and trained by turns: as the plan
says and by an ordinary PyTorch loop, with as many threads and microbatches. Printed are the median
step times and their ratio. The target is 1.03 at most; the exit code does not depend on it.
"""

import argparse
import gc
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import AdamW

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from executor import run  # noqa: E402
from executor.devices.device import use_threads  # noqa: E402
from executor.driver import Options  # noqa: E402
from executor.profiling.profiler import Options as Profiling  # noqa: E402
from executor.profiling.profiler import profile  # noqa: E402
from executor.workload import Task, load  # noqa: E402
from executor.workloads.bytes_lm import gpt as make_gpt  # noqa: E402
from executor.workloads.bytes_lm import next_byte_loss, windows  # noqa: E402
from planner import Problem, build  # noqa: E402
from plans import Plan, runlog  # noqa: E402
from profiles.schema import Emulation, Time  # noqa: E402
from profiles.schema import Task as TaskProfile  # noqa: E402

MEMORY = 4 << 30
LINK = Emulation(h2d_bytes_per_s=10**10, d2h_bytes_per_s=10**10, latency_us=20)
STEPS = 12


def gpt() -> list[Task]:
    """Four blocks with dropout."""
    return [
        Task(
            name="gpt",
            model=partial(make_gpt, 192, 4, 4, 64, 0.1),
            data=partial(windows, seed=1, batch=8, length=64),
            loss=next_byte_loss,
            optimizer=partial(AdamW, lr=3e-4, fused=True),
            steps=STEPS,
        )
    ]


def _mlp() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(6)))


def _vectors(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(2, 256, 768, generator=generator)
    return x[0], x[1]


def mlp() -> list[Task]:
    """Six wide layers without dropout, of few rows: parameters weigh as much as compute."""
    optimizer = partial(AdamW, lr=1e-3, fused=True)
    return [Task("mlp", _mlp, _vectors, F.mse_loss, optimizer, STEPS)]


def planned(name: str) -> Plan:
    """The plan of one task with memory to spare: one shard, and in a round no copies but batches.

    The profile's host is made a slow one, or the plan would let it share the updates.
    """
    ref = f"{Path(__file__).resolve()}:{name}"
    asked = Profiling(device_bytes=MEMORY, emulation=LINK, devices=1, samples=5)
    measured = profile(ref, asked)
    tasks = tuple(slow_host(task) for task in measured.tasks)
    problem = Problem.of(
        replace(measured, tasks=tasks), devices=1, device_bytes=None, host_bytes=None
    )
    plan = build(problem, profile_sha256="0" * 64)
    (program,), (task,) = plan.programs, plan.tasks
    copies = [op.id for op in program.round if op.id.split(".")[-1][0] in "PSX"]
    moved = [op for op in copies if ".batch." not in op]
    if len(task.shards) != 1 or moved:
        sys.exit(f"{name}: the plan has {len(task.shards)} shards and moves {moved}")
    return plan


def slow_host(task: TaskProfile) -> TaskProfile:
    """The task with updates that last a second each on the host."""
    slow = Time(10**6, 10**6, 10**6, 1)
    return replace(task, layers=tuple(replace(layer, update_host=slow) for layer in task.layers))


def replayed(plan: Plan, tasks: list[Task]) -> list[float]:
    """Seconds of each step after the first, which is metered, and the second, which is warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        run(plan, tasks, Options(folder=Path(folder)))
        ends = [record.at_us for record in runlog.load(folder).steps]
    return [(b - a) / 1e6 for a, b in pairwise(ends[1:])]


def plain(task: Task, microbatches: int) -> list[float]:
    """Seconds of each step but the first two of an ordinary loop."""
    use_threads(1)
    torch.manual_seed(task.seed)
    assert not isinstance(task.model, nn.Module)
    model = task.model().train()
    optimizer = task.optimizer(list(model.parameters()))
    ends = []
    for step in range(task.steps):
        inputs, targets = task.data(step)
        total = 0.0
        slices = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
        for x, y in slices:
            loss = task.loss(model(x), y) / microbatches
            torch.autograd.backward(loss)
            total += float(loss.detach())
        ends.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
    return [b - a for a, b in pairwise(ends[1:])]


def compare(name: str, rounds: int) -> None:
    """Print the median step of both and their ratio, and the same of undisturbed steps."""
    plan = planned(name)
    tasks, _ = load(plan.tasks[0].workload.ref)
    ours: list[float] = []
    theirs: list[float] = []
    turns = [
        (ours, partial(replayed, plan, tasks)),
        (theirs, partial(plain, tasks[0], plan.tasks[0].microbatches)),
    ]
    for number in range(rounds):
        for steps, train in turns if number % 2 else reversed(turns):
            gc.collect()
            steps += train()
    sizes = f"{plan.tasks[0].microbatches} microbatch(es), {len(ours)} steps each"
    for what, of in (("median", median), ("undisturbed", undisturbed)):
        mine, other = of(ours), of(theirs)
        print(
            f"{name}, {what}: replay {mine * 1e3:.1f} ms, loop {other * 1e3:.1f} ms, "
            f"ratio {mine / other:.3f} ({sizes})"
        )


def undisturbed(seconds: list[float]) -> float:
    """The 10th percentile: whatever else runs on the machine only ever makes a step longer."""
    return sorted(seconds)[len(seconds) // 10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["gpt", "mlp"], help="gpt, mlp; default both")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each; default 6")
    options = parser.parse_args()
    for name in options.models:
        compare(name, options.rounds)


if __name__ == "__main__":
    main()
