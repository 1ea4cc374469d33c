"""More tasks than the host memory holds: profiled, planned and run with a disk, bit for bit."""

import json
from functools import partial
from pathlib import Path

import pytest
from support.chains import chain
from support.cli import executor_cli, planner_cli, profile, succeeded
from support.plain import train
from support.same import assert_saved
from torch.optim import SGD, AdamW

import plans
from executor.workload.task import Task
from plans.order import waiting

pytestmark = pytest.mark.usefixtures("alone", "untimed", "here")


def many() -> list[Task]:
    """Five tasks of different sizes, lengths and optimizers."""
    adam = partial(AdamW, lr=1e-2, fused=True)
    momentum = partial(SGD, lr=1e-2, momentum=0.9)
    plain = [
        chain(f"t{n}", 1 + n % 2, 4, steps, optimizer=rule, seed=n)
        for n, (rule, steps) in enumerate([(adam, 5), (momentum, 4), (adam, 3), (adam, 4)])
    ]
    return [*plain, chain("clipped", 2, 4, 4, optimizer=adam, seed=9, clip=0.1)]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tier")
    path = folder / "many.json"
    profile(f"{__file__}:many", str(path), "--disk", folder / "away")
    return path


def needed(source: Path) -> tuple[int, int]:
    """Bytes of host memory without and with a disk, as `build` says them."""
    ask = ("build", source, "-o", "none.json", "--host-memory", 1)
    told = planner_cli(*ask, "--disk-space", 0).err.split("smallest --host-memory", 1)[1]
    bare = int(told.split("would do: ", 1)[1].split(",")[0])
    return bare, int(planner_cli(*ask).err.rsplit(maxsplit=1)[1])


@pytest.mark.parametrize("options", [("--devices", 2), ("--segment-steps", 1, "--devices", 2)])
def test_tasks_that_wait_on_the_disk_train_like_alone(
    options: tuple[object, ...], profiled: Path
) -> None:
    """In half of the host memory that they want more than the largest one, or in just its own."""
    bare, least = needed(profiled)
    assert least < bare
    size = least if "--segment-steps" in options else (bare + least) // 2
    ask = ("build", profiled, "-o", "plan.json", "--host-memory", size, *options)
    succeeded(planner_cli(*ask))
    succeeded(planner_cli("check", "plan.json"))
    plan = plans.load("plan.json")
    assert waiting(plan)
    assert plan.host.bytes <= size < bare
    succeeded(executor_cli("run", "plan.json", "-o", "x"))
    ask = ("compare", "plan.json", "x", "--json", "--gantt", "run.png")
    compared = json.loads(succeeded(planner_cli(*ask)).out)
    assert compared["missing"] == 0
    sizes = {task.name: task.microbatches for task in plan.tasks}
    for task in many():
        assert_saved(f"x/{task.name}.pt", train(task, sizes[task.name]))
