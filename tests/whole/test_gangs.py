"""A task on several devices at once beside others on one each, from their profile to their bits."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from support.chains import chain, rows
from support.cli import executor_cli, planner_cli, profile, succeeded
from support.plain import train
from support.same import assert_saved, shares_of

import plans
from executor.workload.task import Evaluation, Task
from plans import runlog

pytestmark = pytest.mark.usefixtures("quick", "untimed", "here")


def tasks(steps: int = 24) -> list[Task]:
    evaluate = Evaluation(every=10, data=lambda n: rows(8, 1000 + n), batches=2)
    return [
        chain("long", 2, 8, steps, seed=1, evaluate=evaluate),
        chain("a", 2, 8, 3, seed=2),
        chain("b", 2, 8, 2, seed=3),
    ]


def first() -> list[Task]:
    return tasks(12)


def test_a_task_on_several_devices_trains_the_bits_of_a_loop() -> None:
    """Evaluated in between on both devices, and gone on from in a plan of the rest, which adds
    gradients alike."""
    options = ("--devices", 3, "--microbatch", 2)  # so that there are some for each device
    profile(f"{__file__}:first", "first-p.json")
    profile(f"{__file__}:tasks", "p.json")
    succeeded(planner_cli("build", "first-p.json", "-o", "first.json", *options))
    succeeded(executor_cli("run", "first.json", "-o", "x"))
    rest = ("build", "p.json", "--from", "x", "-o", "rest.json", *options[:2])
    succeeded(planner_cli(*rest))
    succeeded(executor_cli("run", "rest.json", "-o", "x"))
    for file in ("first.json", "rest.json"):
        made = plans.load(file)
        widths = {segment.program: len(segment.devices) for segment in made.segments}
        assert (widths["long"], widths["long.eval"]) == (2, 2)
    logs = [runlog.load(log) for log in runlog.files("x")]
    assert [line.step for log in logs for line in log.evaluations] == [10, 20]
    (planned,), task = made.tasks, replace(tasks()[0], evaluate=None)
    plain = train(task, planned.microbatches, shares=shares_of(made, task))
    losses = [line.loss for log in logs for line in log.steps if line.task == "long"]
    assert losses == plain.losses
    assert_saved("x/long.pt", plain)
