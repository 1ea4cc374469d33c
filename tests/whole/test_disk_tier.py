"""More tasks than the host memory holds: profiled, planned and run with a disk, bit for bit."""

import json
from functools import partial

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


def test_tasks_that_wait_on_the_disk_train_like_alone() -> None:
    """In less host memory than they want without it, taking turns after every step."""
    profile(f"{__file__}:many", "many.json", "--disk", "away")
    ask = ("build", "many.json", "-o", "none.json", "--host-memory", 1)
    told = planner_cli(*ask, "--disk-space", 0).err.split("smallest --host-memory", 1)[1]
    bare = int(told.split("would do: ", 1)[1].split()[0])
    least = int(planner_cli(*ask).err.rpartition("would do: ")[2].split()[0])
    assert least < bare
    options = ("--segment-steps", 1, "--devices", 2, "--host-memory", least)
    succeeded(planner_cli("build", "many.json", "-o", "plan.json", *options))
    succeeded(planner_cli("check", "plan.json"))
    plan = plans.load("plan.json")
    assert waiting(plan)
    assert plan.host.bytes <= least
    succeeded(executor_cli("run", "plan.json", "-o", "x"))
    ask = ("compare", "plan.json", "x", "--json", "--gantt", "run.png")
    compared = json.loads(succeeded(planner_cli(*ask)).out)
    assert compared["missing"] == 0
    sizes = {task.name: task.microbatches for task in plan.tasks}
    for task in many():
        assert_saved(f"x/{task.name}.pt", train(task, sizes[task.name]))
