"""The demo's models through the whole path: profile, build, check, run, compare."""

import json
from functools import lru_cache
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("torch")

from support.plain import Plain, train
from support.same import assert_same
from support.steady import steady

import plans
import profiles
from executor import cli as executor
from executor import run
from executor.profiling import task as task_profiler
from executor.profiling.profiler import Options, profile
from executor.workload import load
from executor.workload.task import Task
from planner import Infeasible, Problem, build
from planner.cli import parser as planner
from planner.inputs.problem import Policy
from plans.schema import Plan
from profiles.schema import Emulation, Profile

pytestmark = pytest.mark.usefixtures("alone", "untimed")

REF = "support.demo_short:demo"
LINK = Emulation(h2d_bytes_per_s=10**9, d2h_bytes_per_s=10**9, latency_us=20)
BUDGET = 24 << 20


@pytest.fixture(scope="module")
def measured() -> Profile:
    """One profile for all plans, with the same time for everything: a single sample and two ways to
    cut the batch will do."""
    options = Options(device_bytes=BUDGET, emulation=LINK, devices=1, samples=1)
    with mock.patch.object(task_profiler, "microbatch_sizes", lambda batch: [batch // 4, batch]):
        return steady(profile(REF, options))


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return load(REF)[0]


@lru_cache
def oracle(name: str, microbatches: int) -> Plain:
    """The plain loop, once per task and number of microbatches."""
    task = next(t for t in load(REF)[0] if t.name == name)
    return train(task, microbatches)


PLANNED: dict[tuple[int, int, Policy], Plan] = {}  # of the one profile


def planned(measured: Profile, devices: int, budget: int, policy: Policy = "gantry") -> Plan:
    key = devices, budget, policy
    if key not in PLANNED:
        asked = Problem.of(measured, devices=devices, device_bytes=budget, host_bytes=None)
        PLANNED[key] = build(asked, profile_sha256=profiles.sha256(b""), policy=policy)
    return PLANNED[key]


def smallest(measured: Profile) -> int:
    """The smallest budget that every task fits, from the planner's own refusals."""
    budget = 1
    while True:
        try:
            planned(measured, 2, budget)
        except Infeasible as error:
            budget = int(str(error).rsplit(" ", 1)[1])
        else:
            return budget


@pytest.mark.slow
@pytest.mark.parametrize("case", ["two devices", "one device", "smallest budget", "hydra"])
def test_the_demo_is_bitwise_the_plain_loop(
    case: str, measured: Profile, tasks: list[Task]
) -> None:
    """Losses, parameters and AdamW state equal those of plain PyTorch, however it was planned."""
    budget = smallest(measured) if case == "smallest budget" else BUDGET
    devices = 1 if case == "one device" else 2
    plan = planned(measured, devices, budget, "hydra" if case == "hydra" else "gantry")
    streams = any(not shard.resident for task in plan.tasks for shard in task.shards)
    assert streams, "the demo must spill"
    result = run(plan, tasks)
    assert all(used <= budget for used in result.peak_bytes)
    assert_same(plan, tasks, result, lambda task, count: oracle(task.name, count))


def test_the_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Profile, build, check, show, run and compare, as typed, on the tiny workload."""
    root = Path(plans.__file__).parents[1]
    monkeypatch.chdir(tmp_path)
    ref = f"{root}/executor/workloads/bytes_lm.py:tiny"
    sizes = ["--device-memory", "260KiB", "--h2d", "1GB/s", "--d2h", "1GB/s", "--samples", "1"]
    assert executor.main(["profile", ref, "--device", "cpu", *sizes, "-o", "p.json"]) == 0
    assert planner.main(["build", "p.json", "--devices", "2", "-o", "plan.json", "--json"]) == 0
    built = json.loads(capsys.readouterr().out.split("p.json\n", 1)[-1])
    assert planner.main(["check", "plan.json"]) == 0
    shown = ["--gantt", "plan.png", "--trace", "trace.json"]
    assert planner.main(["show", "plan.json", *shown]) == 0
    assert executor.main(["run", "plan.json", "-o", "run.jsonl", "--save", "models"]) == 0
    capsys.readouterr()
    drawn = ["--gantt", "both.png", "--trace", "both.json"]
    assert planner.main(["compare", "plan.json", "run.jsonl", "--json", *drawn]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert {
        "makespan_us", "lower_bound_us", "lower_bound_name", "gap", "exposed_copy_us",
        "peak_bytes", "host_bytes", "build_seconds",
    } <= built.keys()  # fmt: skip
    assert {
        "predicted_us", "actual_us", "makespan_error", "median_op_error", "tasks", "peak_bytes"
    } <= compared.keys()  # fmt: skip
    assert compared["predicted_us"] == built["makespan_us"]
    for name in ("plan.png", "trace.json", "both.png", "both.json", "models/tiny-1.pt"):
        assert (tmp_path / name).stat().st_size > 0
