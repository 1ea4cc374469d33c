"""Twelve small real tasks on four emulated devices, from their profile to their bits."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from msgspec import structs
from support.fleet import BUDGET, DEVICES, measured, tasks
from support.plain import Plain, train
from support.same import assert_same
from torch import Tensor

import profiles
from executor import run
from executor.driver import Options as RunOptions
from executor.workload.task import Task
from executor.workloads import bytes_lm
from planner import Problem, build
from planner.inputs.corrections import apply
from planner.inputs.residuals import residuals
from planner.views.compare import compare
from plans import runlog
from plans.schema import Plan
from profiles.check import violations
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("alone", "untimed")


@cache
def oracle(name: str, microbatches: int) -> Plain:
    """The plain loop, once per task."""
    return train(next(task for task in tasks() if task.name == name), microbatches)


@pytest.fixture(scope="module")
def made() -> Profile:
    return measured()


@pytest.fixture(scope="module")
def plan(made: Profile) -> Plan:
    """All twelve on four devices, too small for the transformers."""
    asked = Problem.of(made, devices=DEVICES, device_bytes=None, host_bytes=None)
    return build(asked, profile_sha256=profiles.sha256(b""))


@pytest.mark.slow
def test_every_task_has_the_bits_of_its_own_loop(made: Profile, plan: Plan, tmp_path: Path) -> None:
    """All devices work, some tasks share one in turn, some spill, nothing is lost, and the log
    corrects the profile."""
    own = tasks()
    result = run(plan, own, RunOptions(folder=tmp_path))
    assert_same(plan, own, result, lambda task, count: oracle(task.name, count))
    assert {device for segment in plan.segments for device in segment.devices} == set(
        range(DEVICES)
    )
    assert any(not shard.resident for task in plan.tasks for shard in task.shards)
    assert all(used <= BUDGET for used in result.peak_bytes)
    log = runlog.load(tmp_path)
    found = compare(plan, log, log.header.plan_sha256)
    assert (found.status, found.missing) == ("ok", ())
    taught = residuals(plan, log, plan_sha256="0" * 64, log_sha256="1" * 64)
    corrected = apply(made, taught)
    assert corrected.tasks != made.tasks
    assert not violations(corrected)


def _short(of: Task, step: int) -> tuple[Tensor, Tensor]:
    if step == 1:
        raise OSError("the disk is gone")
    return of.data(step)


def _nan(y: Tensor, targets: Tensor) -> Tensor:
    return bytes_lm.next_byte_loss(y, targets) * torch.nan


def test_the_others_survive_two_that_fail(plan: Plan, tmp_path: Path) -> None:
    """Without data and without a loss two tasks are dropped, and the rest have their bits."""
    own = {task.name: task for task in tasks()}
    own["gpt-2"] = replace(own["gpt-2"], data=partial(_short, own["gpt-2"]))
    own["rows-3"] = replace(own["rows-3"], loss=_nan)
    result = run(plan, list(own.values()), RunOptions(keep_going=True, folder=tmp_path))
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
    read = runlog.load(tmp_path)
    found = compare(plan, read, read.header.plan_sha256)
    assert (found.status, found.missing, set(found.dropped)) == ("partial", (), lost)
    taught = residuals(plan, read, plan_sha256="0" * 64, log_sha256="1" * 64)
    assert {task.name for task in left.tasks} <= set(taught.tasks)
