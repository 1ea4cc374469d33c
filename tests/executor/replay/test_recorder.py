"""What a run records: every op once, losses, real overlap, and copies as slow as the link."""

import gc
import math
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import handmade
from support.chains import WIDTH, chain, tasks_for
from support.fit import fit, lasting
from support.serial import serial
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import profile

from executor import run
from executor.devices import Mark
from executor.driver import Options
from executor.errors import RunError
from executor.replay.recorder import Recorder
from plans import runlog, timing
from plans.schema import Plan
from plans.timing.intervals import uncovered
from profiles.schema import Emulation

SLOW_LINK = Emulation(h2d_bytes_per_s=1_000_000, d2h_bytes_per_s=2_000_000, latency_us=1000)


def logged(plan: Plan, folder: Path, **options: bool) -> runlog.RunLog:
    """The log of a run of `plan` with ordinary layers."""
    tasks = tasks_for(plan)
    path = folder / "deep"
    run(plan, tasks, Options(folder=path, **options))  # type: ignore[arg-type]
    return runlog.load(path)


def test_every_op_of_every_round_once(tmp_path: Path) -> None:
    """The log joins to the plan's timeline without rest, and every step has its loss."""
    plan = fit(handmade.fleet(), tasks_for(handmade.fleet()))
    log = logged(plan, tmp_path)
    planned = Counter((p.segment, p.op.id, p.round) for p in timing.timeline(plan))
    assert Counter((r.segment, r.op, r.round) for r in log.ops) == planned
    steps = {(task.name, step) for task in plan.tasks for step in range(task.steps)}
    assert {(record.task, record.step) for record in log.steps} == steps
    assert log.end.status == "ok"
    assert not list(tmp_path.glob("**/*.part"))


def test_ops_are_ranges_of_a_profile() -> None:
    """While torch's profiler is on, each op is a range with its name."""
    plan = handmade.streamed()
    tasks = tasks_for(plan)
    plan = fit(plan, tasks)
    threads = _ExperimentalConfig(profile_all_threads=True)
    with profile(experimental_config=threads) as found:
        run(plan, tasks)
    assert {op.id for op in plan.programs[0].round} <= {event.name for event in found.events()}


class Heavy(nn.Linear):
    """Computes for some milliseconds."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.ones(300, 300)
        for _ in range(4):
            noise = noise @ noise
        return super().forward(x) + 0 * torch.nan_to_num(noise, posinf=0.0).sum()


def overlap_us(log: runlog.RunLog) -> int:
    """How long some copy ran while some op computed."""
    copies = [(r.start_us, r.end_us) for r in log.ops if r.op.split(".")[2][0] in "PS"]
    compute = [(r.start_us, r.end_us) for r in log.ops if r.op.split(".")[2][0] in "FB"]
    busy = sum(end - start for start, end in timing.union(copies))
    return busy - uncovered(copies, compute)


def test_copies_overlap_with_compute(tmp_path: Path) -> None:
    """Copies run beside compute ops, and do not where each op waits for the one before it."""
    plan = handmade.streamed()
    tasks = tasks_for(plan, make=Heavy)
    plan = fit(plan, tasks, emulation=SLOW_LINK)
    beside, alone = tmp_path / "beside", tmp_path / "alone"
    run(plan, tasks, Options(folder=beside))
    run(serial(plan), tasks, Options(folder=alone))
    assert overlap_us(runlog.load(beside)) > 0
    assert overlap_us(runlog.load(alone)) == 0


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    """A loss of nan is None in the log and nan in the result; the run goes on."""
    plan = handmade.resident()
    (planned,) = plan.tasks
    task = chain("a", 2, planned.batch, planned.steps)
    plan = fit(plan, [task])
    task = replace(task, loss=lambda y, _: y.mean() * math.nan)
    result = run(plan, [task], Options(folder=tmp_path))
    assert all(math.isnan(loss) for loss in result.losses["a"])
    assert [record.loss for record in runlog.load(tmp_path).steps] == [None] * planned.steps


def test_two_devices_at_once(tmp_path: Path) -> None:
    """Segments that share nothing run at the same time."""
    plan = fit(handmade.fleet(), tasks_for(handmade.fleet()), emulation=SLOW_LINK)
    first, second = (
        [(r.start_us, r.end_us) for r in logged(plan, tmp_path / str(i)).ops if r.segment == i]
        for i in range(2)
    )
    assert min(first)[0] < max(end for _, end in second)
    assert min(second)[0] < max(end for _, end in first)


class Lost:
    """A mark on a device that does not answer any more."""

    def ready(self) -> bool:
        raise RuntimeError("CUDA error: unspecified\nlaunch failure")

    seconds = ready


def test_a_device_that_fails_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure names the op; what else was noted reaches the log and stderr."""
    plan = fit(handmade.fleet(), tasks_for(handmade.fleet()))
    ended = runlog.StopRecord("b", 1, "loss < 9", 5)
    op = Recorder.op

    def noted(
        self: Recorder, segment: int, name: str, number: int, start: Mark, end: Mark, metered: bool
    ) -> None:
        lost = number == 1 and name == "a.s0.B0"
        op(self, segment, name, number, start, Lost() if lost else end, metered)
        if lost:
            self.note(ended)
            self.warn("b", "its loss is odd")

    monkeypatch.setattr(Recorder, "op", noted)
    with pytest.raises(RunError, match=r"^a\.s0\.B0 in round 1, or one before: .* failure$"):
        logged(plan, tmp_path)
    log = runlog.load(tmp_path / "deep")
    assert log.stops == (ended,)
    assert log.end.status == "failed"
    assert "warning: task b: its loss is odd" in capsys.readouterr().err


ALLOWED = 1 << 20  # what the losses and the allocator's luck may add


@pytest.fixture
def as_in_a_run() -> Iterator[None]:
    """Garbage is collected as often as it is outside of tests."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("as_in_a_run")
def test_rounds_leak_nothing() -> None:
    """The peak of the process stands still between the first rounds and the last."""
    tasks = tasks_for(handmade.PLANS["state"]())
    plan = fit(handmade.PLANS["state"](), tasks)
    run(lasting(plan, 40), tasks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(lasting(plan, 300), tasks)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown <= ALLOWED
