"""Small real tasks on emulated devices of two kinds, from their profiles to the bits of plain
loops."""

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from msgspec import structs
from support.chains import chain, rows
from support.cli import executor_cli, planner_cli, refused, succeeded
from support.same import assert_same
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
    """The plan of this name, built once."""
    if (folder / name).exists():
        return plans.load(folder / name)
    call = ("build", folder / "quick.json", folder / "slow.json", "--devices", "1,1", *options)
    succeeded(planner_cli(*call, "-o", folder / name))
    return plans.load(folder / name)


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_tasks_have_the_bits_of_plain_loops(folder: Path, policy: str) -> None:
    """Devices differ in memory and links; under hydra tasks go from one kind to the other."""
    plan = _built(folder, f"{policy}.json", "--policy", policy)
    of = {program.name: program for program in plan.programs}
    places = {
        task.name: {s.devices for s in plan.segments if task.name in of[s.program].tasks}
        for task in plan.tasks
    }
    assert set().union(*places.values()) == {(0,), (1,)}
    assert policy != "hydra" or any(len(devices) == 2 for devices in places.values())
    assert len({device.emulation for device in plan.devices}) == 2
    result = executor.run(plan, tasks())
    assert_same(plan, tasks(), result)
    for used, device in zip(result.peak_bytes, plan.devices, strict=True):
        assert used <= device.budget_bytes


def test_the_run_is_logged_compared_and_gone_on_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command lines: what a run left is planned for both kinds; corrections, which are of
    one profile, are refused."""
    monkeypatch.chdir(folder)
    _built(folder, "hydra.json", "--policy", "hydra")
    alike = "--trust-workload"  # the profile is of the first task, under other names
    call = ("run", "hydra.json", "-o", "x", alike)
    succeeded(executor_cli(*call))
    assert "k1.cpu1" in succeeded(planner_cli("show", "hydra.json", "--gantt", "x.png")).out
    succeeded(planner_cli("compare", "hydra.json", "x", "--gantt", "y.png"))
    call = ("compare", "hydra.json", "x", "--write-corrections", "c.json")
    refused(planner_cli(*call), 2, "was built from several profiles")
    lines = Path("x/log.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"checkpoint"' not in line or '"mlp1"' in line]
    Path("x/log.jsonl").write_text("\n".join(kept) + "\n")
    rest = _built(folder, "rest.json", "--policy", "hydra", "--from", "x")
    assert [task.name for task in rest.tasks] == ["mlp0", "mlp2"]
