"""A task on several devices at once beside others on one each, from their profile to their bits.

Programs on several devices are stand-ins: one of the devices does all of the work.
"""

from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")

import torch
from support import gangs
from support.cli import executor_cli, planner_cli, profile, succeeded
from support.plain import train
from support.same import assert_saved
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import plans
from executor.workload.task import Evaluation, Task
from planner import Problem
from planner.inputs.problem import Effort
from planner.search.searches import Searches, Ways
from planner.search.task import Candidate, Wide
from plans import runlog

pytestmark = pytest.mark.usefixtures("quick", "untimed", "here")

WIDTH = 32


def rows(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, WIDTH, generator=generator)
    return inputs, torch.randn(8, WIDTH, generator=generator)


def model() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)) for _ in "ab"))


def tasks(steps: int = 24) -> list[Task]:
    fused = partial(AdamW, lr=1e-2, fused=True)
    evaluate = Evaluation(every=10, data=lambda n: rows(1000 + n), batches=2)
    return [
        Task("long", model, rows, F.mse_loss, fused, steps, seed=1, evaluate=evaluate),
        Task("a", model, rows, F.mse_loss, fused, 3, seed=2),
        Task("b", model, rows, F.mse_loss, fused, 2, seed=3),
    ]


def first() -> list[Task]:
    return tasks(12)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task is trained on two devices, whether that is quicker or not."""

    def explore(problem: Problem, searches: Searches, _: object, effort: Effort) -> None:
        names = [task.name for task in problem.tasks]
        searches.run(names, [Wide(names[0], 0, 2)], effort)

    def settled(problem: Problem, ways: Ways, effort: Effort) -> list[Candidate]:
        return [own[-1] for own in ways]

    monkeypatch.setattr("planner.builder.best", gangs.pipelines)
    monkeypatch.setattr("planner.builder.explore", explore)
    monkeypatch.setattr("planner.builder.settled", settled)


@pytest.mark.usefixtures("wide")
def test_a_task_on_several_devices_trains_the_bits_of_one() -> None:
    """Evaluated in between on one device, and gone on from in a plan of the rest."""
    options = ("--devices", 3)
    sizes = ("--microbatch", 2)  # so that there are some for each device
    profile(f"{__file__}:first", "first-p.json")
    profile(f"{__file__}:tasks", "p.json")
    succeeded(planner_cli("build", "first-p.json", "-o", "first.json", *options, *sizes))
    succeeded(executor_cli("run", "first.json", "-o", "1.jsonl", "--checkpoints", "kept"))
    rest = ("build", "p.json", "--from", "1.jsonl", "-o", "rest.json", *options)
    succeeded(planner_cli(*rest))
    succeeded(executor_cli("run", "rest.json", "-o", "2.jsonl", "--resume", "kept", "--save", "."))
    for file in ("first.json", "rest.json"):
        made = plans.load(file)
        widths = {segment.program: len(segment.devices) for segment in made.segments}
        assert (widths["long"], widths["long.eval"]) == (2, 1)
    logs = [runlog.load(f"{n}.jsonl") for n in (1, 2)]
    assert [line.step for log in logs for line in log.evaluations] == [10, 20]
    (task,) = (one for one in made.tasks if one.name == "long")
    plain = train(replace(tasks()[0], evaluate=None), task.microbatches)
    losses = [line.loss for log in logs for line in log.steps if line.task == "long"]
    assert losses == plain.losses
    assert_saved("long.pt", plain)
