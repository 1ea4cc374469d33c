"""Tasks of one base from the commands: killed, in processes, planned further in other groups, and
what is said of a base that is another one.

The functions without `test_` are workloads.
"""

import os
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from support.based import cut_apart, grouped
from support.cli import executor_cli, planner_cli, profile, refused, succeeded
from support.forked import ended, started, torchrun
from support.plain import train
from support.quick import measured, quickly
from support.same import added_as, assert_same, assert_saved
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import plans
from executor import Evaluation, Task, run
from executor.errors import MismatchError
from planner import Problem
from plans import prove, runlog
from plans.view import base_owners

pytestmark = pytest.mark.usefixtures("quick", "untimed", "here")

WIDTH = 32
ROOM = ("--device-memory", "40KiB")


class Adapted(nn.Module):
    """A frozen linear layer of a seed, and a low rank of a task's own."""

    def __init__(self, rank: int, seed: int) -> None:
        super().__init__()
        values = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)) / 4
        self.base = nn.Parameter(values, requires_grad=False)
        self.down, self.up = nn.Linear(WIDTH, rank), nn.Linear(rank, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.base) + self.up(self.down(self.drop(x))))


def model(rank: int, seed: int = 0) -> nn.Sequential:
    return nn.Sequential(*(Adapted(rank, seed + layer) for layer in range(4)))


def rows(step: int) -> tuple[Tensor, Tensor]:
    time.sleep(float(os.environ.get("PAUSE", "0")))
    x, y = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(step))
    return x, y


def task(n: int, steps: int = 6) -> Task:
    """Of its own rank, optimizer, clipping and random numbers. What it has in BASE or TRAINS in the
    environment changes its base or lets it be trained."""
    optimizers = [partial(AdamW, lr=0.01), partial(SGD, lr=0.1), partial(AdamW, lr=0.03)]

    def made() -> nn.Sequential:
        model = nn.Sequential(
            *(Adapted(2 + n, at + (os.environ.get("BASE") == f"t{n}")) for at in range(4))
        )
        for layer in model if os.environ.get("TRAINS") == f"t{n}" else ():
            layer.base.requires_grad_()
        return model

    judge = Evaluation(every=2, data=lambda n: rows(100 + n), batches=1)
    clip = 0.5 if n == 1 else None
    more = {"clip": clip, "seed": n, "evaluate": judge}
    return Task(f"t{n}", made, rows, F.mse_loss, optimizers[n], steps, **more)


def tasks() -> list[Task]:
    return [task(n) for n in range(3)]


def planned(source: Path, output: str | Path, *options: object) -> plans.Plan:
    """The plan of the command."""
    succeeded(planner_cli("build", source, "-o", output, *options))
    return plans.load(output)


def together(source: Path, output: str | Path, *options: object) -> plans.Plan:
    """A plan in which all three train together."""
    plan = planned(source, output, *options)
    assert {program.tasks for program in plan.programs} == {("t0", "t1", "t2")}
    return plan


def assert_alone(plan: plans.Plan, tasks: list[Task], folder: str) -> None:
    """The folder has what plain loops train."""
    for own in tasks:
        assert_saved(f"{folder}/{own.name}.pt", train(own, plan.task(own.name).microbatches))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of `tasks`, with links on which a base takes much longer than what it is for;
    beside it a plan in which all train together."""
    path = tmp_path_factory.mktemp("bases") / "p.json"
    profile(f"{__file__}:tasks", str(path))
    slow = re.sub(r'"bytes_per_s": *\d+', '"bytes_per_s": 2000000', path.read_text())
    path.write_text(slow)
    together(path, path.with_name("plan.json"), *ROOM, "--segment-steps", 2)
    return path


def test_a_killed_run_goes_on(profiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same command, and planned anew where each task trains alone, all tasks have the bits
    of a plain loop."""
    first = profiled.with_name("plan.json")
    plan = plans.load(first)
    monkeypatch.setenv("PAUSE", "0.05")
    process = started(["-m", "executor", "run", first, "-o", "x"], Path("said"))
    while process.is_alive() and not kept("x", 2):
        time.sleep(0.04)
    process.kill()
    assert ended(process) == -signal.SIGKILL
    monkeypatch.delenv("PAUSE")
    assert not kept("x", 6)
    shutil.copytree("x", "y")
    succeeded(executor_cli("run", first, "-o", "x"))
    assert_alone(plan, tasks(), "x")
    rest = planned(profiled, "rest.json", "--from", "y", "--policy", "hydra")
    assert {program.tasks for program in rest.programs} == {("t0",), ("t1",), ("t2",)}
    assert all(0 < task.done < 6 for task in rest.tasks)
    succeeded(executor_cli("run", "rest.json", "-o", "y"))
    assert_alone(rest, tasks(), "y")


def kept(folder: str, step: int) -> bool:
    """True once states of all tasks after so many steps are in the folder's log."""
    log = Path(folder, runlog.LOG)
    lines = runlog.load(log).checkpoints if log.exists() else []
    return len({line.task for line in lines if line.step >= step}) == 3


def test_processes_share_a_base(profiled: Path) -> None:
    """Two of a node, which have it once in the store of both."""
    plan = together(profiled, "plan.json", *ROOM, "--devices", 2)
    assert {program.devices for program in plan.programs} == {2}
    process = started(torchrun(2, "-m", "executor", "run", "plan.json", "-o", "x"), Path("said"))
    assert ended(process) == 0, Path("said").read_text()
    assert_alone(plan, tasks(), "x")


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        ("BASE", "t1", "task t1: what it does not train is no longer what task t0 does not train"),
        ("BASE", "t0", "task t2: what it does not train is no longer what task t0 does not train"),
        ("TRAINS", "t1", "task t1 is not as the plan was made for: the model that is built"),
    ],
)
def test_a_base_that_is_another_one(
    change: str, name: str, said: str, profiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or is trained, since the profile: nothing is trained, and a line says which."""
    monkeypatch.setenv(change, name)
    refused(executor_cli("run", profiled.with_name("plan.json"), "-o", "x"), 2, said)
    assert not Path("x", "t1.pt").exists()


@pytest.mark.parametrize("change", ["", "t1"])
def test_a_base_that_is_cut_in_two_ways_is_one(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks have the bits of plain loops, and one that has another base by now is named."""
    own = [task(n, 2) for n in range(2)]
    with quickly(), cut_apart("t1"):
        asked = Problem.of(measured(own, 2), devices=1, device_bytes=40 << 10, host_bytes=None)
        plan = grouped(asked, [["t0"], ["t1"]])
    prove(plan)
    assert [one.base for one in plan.tasks] == ["t0", "t1"]
    assert set(base_owners(plan).values()) == {"t0"}
    monkeypatch.setenv("BASE", change)
    if not change:
        assert_same(plan, own, run(plan, own), added_as(plan))
        return
    with pytest.raises(MismatchError, match="no longer what task t0 does not train"):
        run(plan, own)


def test_replicas_add_up_what_is_of_one_task() -> None:
    """Where three devices have the microbatches of two tasks."""
    own = [task(n, 2) for n in range(2)]
    with quickly():
        asked = Problem.of(measured(own, 4), devices=3, device_bytes=1 << 20, host_bytes=None)
        plan = grouped(asked, [["t0", "t1"]])
    prove(plan)
    added = {op.name.task for program in plan.programs for op in program.round if ".R" in op.id}
    assert added == {"t0", "t1"}
    assert_same(plan, own, run(plan, own), added_as(plan))
