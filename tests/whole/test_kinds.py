"""Small real tasks on emulated devices of two kinds, from their profiles to the bits of plain
loops."""

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from msgspec import structs
from support.chains import chain, rows
from support.cli import executor_cli, planner_cli, refused, succeeded
from support.plain import train
from support.same import assert_same, assert_saved
from support.steady import steady
from torch import nn
from torch.optim import AdamW

import executor
import plans
import profiles
from executor.profiling.profiler import Options, profile
from executor.workload.task import Task
from planner.inputs.whatif import override
from plans.schema import Plan
from profiles.schema import Emulation

pytestmark = pytest.mark.usefixtures("quick", "untimed")

WIDTH, BATCH, STEPS = 96, 8, 12
QUICK = Options(
    device_bytes=300 << 10, emulation=Emulation(400_000_000, 400_000_000, 20), devices=1, samples=1
)


def _model() -> nn.Sequential:
    hidden = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(3))
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 4))


def tasks() -> list[Task]:
    """Three of one shape."""
    own = {
        "model": _model,
        "data": partial(rows, BATCH, width=WIDTH, out=4),
        "optimizer": partial(AdamW, lr=1e-2, fused=True),
    }
    return [chain(f"mlp{n}", 0, BATCH, STEPS, seed=n, **own) for n in range(3)]


def one() -> list[Task]:
    """What is measured."""
    return tasks()[:1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """quick.json and slow.json: the same tasks on devices of two kinds, the other one with slower
    links and a little more memory. Every time is the same, so that plans do not vary with noise."""
    folder = tmp_path_factory.mktemp("kinds")
    measured = steady(profile(f"{__file__}:one", QUICK))
    names = tuple(structs.replace(measured.tasks[0], name=task.name) for task in tasks())
    ref = structs.replace(names[0].workload, ref=f"{__file__}:tasks")
    named = tuple(structs.replace(task, workload=ref) for task in names)
    measured = structs.replace(measured, tasks=named)
    profiles.save(folder / "quick.json", measured)
    machine = override(measured, h2d=100_000_000, d2h=50_000_000).machine
    device = structs.replace(machine.devices[0], usable_bytes=320 << 10)
    machine = structs.replace(machine, devices=(device,))
    profiles.save(folder / "slow.json", structs.replace(measured, machine=machine))
    return folder


def _built(folder: Path, name: str, *options: object) -> Plan:
    call = ("build", folder / "quick.json", folder / "slow.json", "--devices", "1,1", *options)
    succeeded(planner_cli(*call, "-o", folder / name))
    return plans.load(folder / name)


def _places(plan: Plan) -> list[set[int]]:
    """The devices that each task is trained on."""
    of = {program.name: program for program in plan.programs}
    return [
        {d for s in plan.segments if task.name in of[s.program].tasks for d in s.devices}
        for task in plan.tasks
    ]


def test_tasks_have_the_bits_of_plain_loops(folder: Path) -> None:
    """Devices differ in memory and links, and each task is on one of them."""
    plan = _built(folder, "gantry.json")
    assert set().union(*_places(plan)) == {0, 1}
    assert len({device.emulation for device in plan.devices}) == 2
    result = executor.run(plan, tasks())
    assert_same(plan, tasks(), result)
    for used, device in zip(result.peak_bytes, plan.devices, strict=True):
        assert used <= device.budget_bytes


def test_the_run_is_logged_compared_and_gone_on_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command lines, where tasks go from one kind to the other: they have the bits of plain
    loops, what a run left is planned for both kinds, and corrections, which are of one profile, are
    refused."""
    monkeypatch.chdir(folder)
    plan = _built(folder, "hydra.json", "--policy", "hydra")
    assert {0, 1} in _places(plan)
    alike = "--trust-workload"  # the profile is of the first task, under other names
    call = ("run", "hydra.json", "-o", "x", alike)
    succeeded(executor_cli(*call))
    for task, planned in zip(tasks(), plan.tasks, strict=True):
        assert_saved(f"x/{task.name}.pt", train(task, planned.microbatches))
    assert "k1.cpu1" in succeeded(planner_cli("show", "hydra.json", "--gantt", "x.png")).out
    succeeded(planner_cli("compare", "hydra.json", "x", "--gantt", "y.png"))
    call = ("compare", "hydra.json", "x", "--write-corrections", "c.json")
    refused(planner_cli(*call), 2, "was built from several profiles")
    lines = Path("x/log.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"checkpoint"' not in line or '"mlp1"' in line]
    Path("x/log.jsonl").write_text("\n".join(kept) + "\n")
    rest = _built(folder, "rest.json", "--policy", "hydra", "--from", "x")
    assert [task.name for task in rest.tasks] == ["mlp0", "mlp2"]
