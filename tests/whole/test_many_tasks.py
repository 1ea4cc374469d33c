"""Twelve small real tasks on four emulated devices, from their profile to their bits.

The devices compute slower than this machine, so that four of them are as fast as planned on a few
busy cores: all times here are of emulated compute.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from msgspec import structs
from support.plain import Plain, train
from support.same import assert_same
from torch import Tensor, nn
from torch.optim import AdamW

import profiles
from executor import run
from executor.driver import Options as RunOptions
from executor.profiling.profiler import Options, profile
from executor.workload.task import Task
from executor.workloads import bytes_lm
from planner import Problem, build
from planner.inputs.residuals import residuals
from planner.views.compare import compare, table
from plans import runlog
from plans.schema import Plan
from profiles.schema import Emulation

pytestmark = pytest.mark.usefixtures("alone")

SLOW = 60  # so that a first round, which the memory meter makes some ten times as long, fits too
PACED = Emulation(200_000_000, 200_000_000, latency_us=20, compute_slowdown=SLOW)
DEVICES, BUDGET, LENGTH, BATCH = 4, 700 << 10, 16, 2


class Rows(nn.Module):
    """A recurrent layer and a norm: (batch, length, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.cell(x)[0])
        return y


class Convolution(nn.Module):
    """A causal convolution over the text: (batch, length, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Conv1d(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.weigh(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return x + F.gelu(y)


def _over_text(layer: Callable[[int], nn.Module], width: int, layers: int) -> nn.Sequential:
    """Layers of one kind between an embedding and a head, with dropout."""
    body = [nn.Sequential(layer(width), nn.Dropout(0.1)) for _ in range(layers)]
    return nn.Sequential(bytes_lm.Embedding(width, LENGTH), *body, nn.Linear(width, bytes_lm.BYTES))


def tasks() -> list[Task]:
    """A transformer, a recurrent net and a convolution that learn a text, each in four ways."""
    return [
        replace(
            task,
            name=f"{task.name}-{way}",
            optimizer=partial(AdamW, lr=10**-way, fused=True),
            data=partial(bytes_lm.windows, seed=way, batch=BATCH, length=LENGTH),
            seed=way,
        )
        for way in range(1, 5)
        for task in families()
    ]


def families() -> list[Task]:
    """What is measured: a task does not take longer for learning at another rate."""
    gpt = partial(bytes_lm.gpt, 64, 2, 4, LENGTH, 0.1)
    rows, mixed = partial(_over_text, Rows, 24, 2), partial(_over_text, Convolution, 32, 2)
    data = partial(bytes_lm.windows, seed=0, batch=BATCH, length=LENGTH)
    fused, loss = partial(AdamW, fused=True), bytes_lm.next_byte_loss
    return [
        Task("gpt", gpt, data, loss, fused, steps=4, precision="bf16"),
        Task("rows", rows, data, loss, fused, steps=5, clip=0.5),
        Task("mixed", mixed, data, loss, fused, steps=6, precision="fp16-autocast"),
    ]


@cache
def oracle(name: str, microbatches: int) -> Plain:
    """The plain loop, once per task."""
    return train(next(task for task in tasks() if task.name == name), microbatches)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """All twelve on four devices, too small for the transformers."""
    measured = profile(
        f"{__file__}:families", Options(device_bytes=BUDGET, emulation=PACED, devices=1, samples=1)
    )
    of = {task.name: task for task in measured.tasks}
    named = tuple(
        structs.replace(of[task.name.partition("-")[0]], name=task.name) for task in tasks()
    )
    measured = structs.replace(measured, tasks=named)
    asked = Problem.of(measured, devices=DEVICES, device_bytes=None, host_bytes=None)
    return build(asked, profile_sha256=profiles.sha256(b""))


@pytest.mark.slow
def test_every_task_has_the_bits_of_its_own_loop(
    plan: Plan, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """All devices work, some tasks share one in turn, some spill, nothing is lost, and the whole
    lasts about as long as predicted."""
    own = tasks()
    result = run(plan, own, RunOptions(log=tmp_path / "x.jsonl"))
    predicted = plan.prediction.makespan_us
    ratio = result.actual_us / predicted
    print(f"{plan.emulated}: predicted {predicted} µs, actual {result.actual_us} µs, {ratio:.3f}")
    record_property("ratio", ratio)
    assert 1 <= ratio <= 1.15
    assert_same(plan, own, result, lambda task, count: oracle(task.name, count))
    assert {device for segment in plan.segments for device in segment.devices} == set(
        range(DEVICES)
    )
    assert any(not shard.resident for task in plan.tasks for shard in task.shards)
    assert all(used <= BUDGET for used in result.peak_bytes)
    log = runlog.load(tmp_path / "x.jsonl")
    found = compare(plan, log, log.header.plan_sha256)
    assert (found.status, found.missing.count) == ("ok", 0)
    assert f"emulated compute, {SLOW} times slower" in table(found)


def _short(of: Task, step: int) -> tuple[Tensor, Tensor]:
    if step == 1:
        raise OSError("the disk is gone")
    return of.data(step)


def _unpaced(plan: Plan) -> Plan:
    """The same plan on devices that compute as fast as they can."""
    quick = structs.replace(PACED, compute_slowdown=1)
    devices = (structs.replace(device, emulation=quick) for device in plan.devices)
    return structs.replace(plan, devices=tuple(devices))


def _nan(y: Tensor, targets: Tensor) -> Tensor:
    return bytes_lm.next_byte_loss(y, targets) * torch.nan


def test_the_others_survive_two_that_fail(plan: Plan, tmp_path: Path) -> None:
    """Without data and without a loss two tasks are dropped, and the rest have their bits."""
    plan = _unpaced(plan)
    own = {task.name: task for task in tasks()}
    own["gpt-2"] = replace(own["gpt-2"], data=partial(_short, own["gpt-2"]))
    own["rows-3"] = replace(own["rows-3"], loss=_nan)
    log = tmp_path / "x.jsonl"
    result = run(plan, list(own.values()), RunOptions(keep_going=True, log=log))
    assert result.dropped["gpt-2"].reason == "task gpt-2: data(1): OSError: the disk is gone"
    assert result.dropped["rows-3"].reason == "the loss of step 0 is nan"
    programs = [set(program.tasks) for program in plan.programs]
    lost = {"gpt-2", "rows-3"}
    while more := {name for p in programs if p & lost for name in p} - lost:
        lost |= more
    assert set(result.dropped) == lost
    left = structs.replace(plan, tasks=tuple(t for t in plan.tasks if t.name not in lost))
    kept = [own[task.name] for task in left.tasks]
    assert len(kept) >= 6
    assert_same(left, kept, result, lambda task, count: oracle(task.name, count))
    turns = [s.devices for s in plan.segments]
    assert any(one == other for one, other in pairwise(sorted(turns)))
    read = runlog.load(log)
    found = compare(plan, read, read.header.plan_sha256)
    assert (found.status, found.missing.count, set(found.dropped)) == ("partial", 0, lost)
    taught = residuals(plan, read, plan_sha256="0" * 64, log_sha256="1" * 64)
    assert all(task.times for task in taught.tasks if task.name not in lost)
