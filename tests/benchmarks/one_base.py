"""Adapters of one frozen base that train together: steps a second, host bytes, plans for H100s.

    python -m tests.benchmarks.one_base                  # real runs on an emulated device
    python -m tests.benchmarks.one_base lorafusion.json  # plans for its measured layers

Runs: 1, 2, 4 and 8 adapters on a chain that one adapter alone waits for the link with. For each the
adapter steps a second as run, beside the most there can be: as many times what the link allows one
adapter, or what the device computes; actual over predicted time; and the host bytes beside one base
and what each adapter keeps. Exit code 1 unless all are within 10 %, 5 % and 2 %.

Plans: 4 adapters on 1, 2 and 4 H100s for the file's times of layers, and its figures beside them.
Exit code 1 unless each is at least the best of its row.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from msgspec import structs
from torch import Tensor, nn
from torch.optim import AdamW

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import synthetic

from executor import run
from executor.driver import Options as RunOptions
from executor.profiling.profiler import Options, profile
from executor.workload import Task, load
from planner import Problem, build
from plans.schema import Plan
from plans.timing import round_compute_us
from profiles.codec import align, sha256
from profiles.console import columns
from profiles.schema import (
    BatchCost,
    Emulation,
    Layer,
    LayerCost,
    Profile,
    Workload,
)
from profiles.schema import Task as ProfiledTask

HASH = "0" * 64
WIDTH, LAYERS, BATCH, RANK, STEPS = 1536, 16, 16, 4, 5
LINK = Emulation(
    h2d_bytes_per_s=100_000_000, d2h_bytes_per_s=100_000_000, latency_us=20, compute_slowdown=4
)
ROOM = 44 << 20  # of the device: four layers and what is between them


class Adapted(nn.Module):
    """A frozen linear layer, the same for all tasks, and a product of two thin ones."""

    def __init__(self, task: int, layer: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(layer)
        values = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
        self.base = nn.Parameter(values, requires_grad=False)
        generator = torch.Generator().manual_seed(1000 * task + layer)
        self.down = nn.Parameter(torch.randn(RANK, WIDTH, generator=generator) / WIDTH**0.5)
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, self.base) + F.linear(F.linear(x, self.down), self.up))


def model(task: int) -> nn.Sequential:
    return nn.Sequential(*(Adapted(task, layer) for layer in range(LAYERS)))


def rows(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
    return x[0], x[1]


def tasks(count: int) -> list[Task]:
    optimizer = partial(AdamW, lr=1e-3, fused=True)
    return [
        Task(f"a{n}", partial(model, n), rows, F.mse_loss, optimizer, steps=STEPS)
        for n in range(count)
    ]


def one() -> list[Task]:
    return tasks(1)


def two() -> list[Task]:
    return tasks(2)


def four() -> list[Task]:
    return tasks(4)


def eight() -> list[Task]:
    return tasks(8)


def runs() -> bool:
    """Profile, plan and run each number of adapters; whether all is as it should be."""
    alone, good = 0.0, True
    for name, count in (("one", 1), ("two", 2), ("four", 4), ("eight", 8)):
        ref = f"tests.benchmarks.one_base:{name}"
        options = Options(device_bytes=ROOM, emulation=LINK, devices=1, samples=5)
        made = profile(ref, options)
        asked = Problem.of(made, devices=1, device_bytes=None, host_bytes=None)
        plan = build(asked, profile_sha256=HASH, seconds=60)
        result = run(plan, load(ref)[0], RunOptions())
        period = max(program.period_us for program in plan.programs)
        compute = sum(max(round_compute_us(program)) for program in plan.programs)
        rate = count * STEPS / (result.actual_us / 1e6)
        alone = alone or 1e6 / period
        most = min(count * alone, count * 1e6 / compute)
        ratio = result.actual_us / plan.prediction.makespan_us
        bytes_ = host_ratio(plan)
        good &= rate >= 0.9 * most and abs(ratio - 1) <= 0.05 and abs(bytes_ - 1) <= 0.02
        together = "+".join(str(len(program.tasks)) for program in plan.programs)
        print(
            f"{count} adapters, {together} in a round: {rate:.2f} steps/s of {most:.2f}, actual "
            f"over predicted {ratio:.3f}, host bytes {bytes_:.3f}",
            flush=True,
        )
    return good


def host_ratio(plan: Plan) -> float:
    """What the store keeps between segments, over one base and what each task has of its own."""
    own = sum(s.param_bytes + s.state_bytes for task in plan.tasks for s in task.shards)
    base = sum(shard.base_bytes for shard in plan.tasks[0].shards)
    kept = [b for b in plan.host.buffers if b.name.endswith((".param", ".state", ".base"))]
    return sum(buffer.bytes for buffer in kept) / (own + base)


TOKENS = 2048  # of a sample
ADAPTERS, THIN = 4, 16  # tasks, and the rank of each
H100 = 80 * 10**9 * 9 // 10  # bytes of one that a plan may use
SHAPES = {  # width, width of keys and values, inner width, by model: of their published configs
    "8B": (4096, 1024, 14336),
    "32B": (5120, 1024, 27648),
    "70B": (8192, 1024, 28672),
}


def published(path: str) -> bool:
    """Plan each of the file's models; whether all are at least as fast as the best of their row."""
    data, good, found = json.loads(Path(path).read_text()), True, []
    for row, devices in ((row, int(row.split("x")[0].split()[-1])) for row in data["throughput"]):
        name = next(size for size in SHAPES if size in row)
        batch = data["global_batch"][name]
        made = adapters(data["layers"][name], SHAPES[name], batch)
        asked = Problem.of(made, devices=devices, device_bytes=None, host_bytes=None)
        plan = build(asked, profile_sha256=HASH, seconds=300, jobs=2)
        steps = plan.tasks[0].steps
        rate = ADAPTERS * batch * TOKENS * steps / (plan.prediction.makespan_us / 1e6)
        compute = devices * TOKENS * 4 / step_s(data["layers"][name], 4 * TOKENS)
        best = max(max(own) for own in data["throughput"][row].values())
        together = "+".join(str(len(p.tasks)) for p in plan.programs)
        found.append((row.split(" [")[0], together, f"{rate:.0f}", f"{best:.0f}", f"{compute:.0f}"))
        good &= rate >= best
    head = ("model", "in a round", "planned tokens/s", "best published", "compute allows")
    print("\n".join(columns([head, *found], numbers=True)))
    return good


def step_s(times: dict[str, Any], tokens: int) -> float:
    """Seconds that so many tokens take without any recomputation."""
    return times["n"] * times["fwd_bwd"][str(tokens)] + times["pre_post_fwd_bwd"][str(tokens)]


def adapters(times: dict[str, Any], shape: tuple[int, int, int], batch: int) -> Profile:
    """Adapters of all linear layers of a model with these times, in bf16 with fp32 masters; all
    samples have as many tokens."""
    width, thin, inner = shape
    sizes = [n for n in (1, 2, 4) if batch % n == 0]
    trained = THIN * (4 * width + 2 * (width + thin) + 3 * (width + inner))
    head = times["pre_post_fwd_bwd"]
    block = {n: (times["fwd"][str(n * TOKENS)], times["fwd_bwd"][str(n * TOKENS)]) for n in sizes}
    ends = {n: (head[str(n * TOKENS)] / 3, head[str(n * TOKENS)]) for n in sizes}
    kept = 2 * (5 * width + 2 * thin + 3 * inner)  # bytes of a token for its backward
    layers = [
        _layer(f"block{n}", 2 * times["params"], trained, block, width, kept)
        for n in range(times["n"])
    ]
    layers.append(_layer("head", 4 * 128_256 * width, 0, ends, width, 4 * width))
    tasks = tuple(
        ProfiledTask(
            name=f"a{n}",
            workload=Workload("published", sha256(b"published")),
            steps=10,
            batch=batch,
            optimizer="AdamW",
            batches=tuple(BatchCost(n, align(8 * n * TOKENS)) for n in sizes),
            precision="bf16",
            base=sha256(b"base"),
            layers=tuple(layers),
        )
        for n in range(ADAPTERS)
    )
    machine = synthetic.machine(usable_bytes=H100, bytes_per_s=25 * 10**9)
    p2p = structs.replace(machine.devices[0].links[0], kind="p2p")
    device = structs.replace(machine.devices[0], links=(*machine.devices[0].links, p2p))
    return Profile(machine=structs.replace(machine, devices=(device,)), tasks=tasks, estimated=True)


def _layer(
    name: str,
    frozen: int,
    trained: int,
    seconds: dict[int, tuple[float, float]],
    width: int,
    kept: int,
) -> Layer:
    """A layer whose times are those of so many samples: of a forward, and with a backward."""
    own, update = align(2 * trained), synthetic.time_us(1 + trained // 100_000)
    costs = []
    for n, (forward, both) in seconds.items():
        boundary = align(2 * width * n * TOKENS)
        saved = align(kept * n * TOKENS)
        costs.append(
            LayerCost(
                microbatch=n,
                in_bytes=boundary,
                out_bytes=boundary,
                saved_bytes=saved,
                forward_peak_bytes=saved // 2,
                backward_peak_bytes=saved + saved // 2,
                rng_draws=0,
                forward=synthetic.time_us(round(forward * 1e6)),
                recompute_backward=synthetic.time_us(round(both * 1e6)),
                backward=synthetic.time_us(round((both - forward) * 1e6)),
                offload_bytes=saved,
            )
        )
    return Layer(
        name=name,
        param_bytes=align(frozen) + own,
        grad_bytes=own,
        state_bytes=6 * own,
        buffer_bytes=0,
        update_peak_bytes=0,
        update_device=update,
        update_host=update,
        costs=tuple(costs),
    )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="lorafusion.json, for plans instead of runs")
    file = parser.parse_args(given).file
    return 0 if (published(file) if file else runs()) else 1


if __name__ == "__main__":
    sys.exit(main())
