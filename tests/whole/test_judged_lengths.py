"""A task with lengths and an evaluation, from its profile to the losses of plain loops.

`tasks` is a workload of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support.cli import executor_cli, planner_cli, succeeded
from support.small_texts import groups
from support.texted import Parts, joined, trained
from torch import Tensor, nn

from executor.workload import Evaluation, Task
from executor.workloads import documents
from plans import runlog
from plans.samples import ENTRY, open_table, table_path
from profiles.lengths import of_step

pytestmark = pytest.mark.usefixtures("quick", "untimed", "here")

LONGEST, HELD, EVERY, STEPS, BATCH = 256, 11, 2, 5, 4
LENGTHS = documents.lengths(LONGEST)
SIZES = "64,100,128,256"


def model() -> nn.Module:
    return documents.Model(width=16, blocks=2, heads=2, longest=LONGEST).double()


def held(numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Documents from the end of the list."""
    return documents.samples([len(LENGTHS) - HELD + n for n in numbers], longest=LONGEST)


def tasks() -> list[Task]:
    (tiny,) = documents.tiny()
    own = Evaluation(EVERY, held, lengths=LENGTHS[-HELD:])
    data = partial(documents.samples, longest=LONGEST)
    return [
        replace(
            tiny, model=model, data=data, lengths=LENGTHS, batch=BATCH, steps=STEPS, evaluate=own
        )
    ]


def loop(
    steps: Sequence[Sequence[Sequence[int]]], rounds: Sequence[Sequence[int]]
) -> dict[int, float]:
    """The losses of the evaluations of an ordinary loop whose steps go through microbatches of
    these samples, and its evaluations through these."""
    (task,) = tasks()

    def parts(data: Callable[[Any], Any], every: Sequence[Sequence[int]]) -> Parts:
        return (part for own in every for part in joined(data(own)))

    def of(step: int) -> list[int]:
        return [n for own in steps[step] for n in own]

    return trained(
        task, lambda step: parts(task.data, steps[step]), of, lambda: parts(held, rounds)
    ).val_losses


@pytest.mark.parametrize(("devices", "packing"), [(1, "balanced"), (2, "fixed")])
def test_evaluations_have_the_losses_of_an_ordinary_loop(devices: int, packing: str) -> None:
    """Sample by sample; and to the last bit in the same microbatches, if none is padded and one
    device adds all gradients."""
    call = ("--device-memory", "64MiB", "--samples", 1, "--lengths", SIZES)
    succeeded(executor_cli("profile", f"{__file__}:tasks", *call, "-o", "x.json"))
    plan, asked = Path("plan.json"), ("--devices", devices, "--packing", packing)
    succeeded(planner_cli("build", "x.json", *asked, "-o", plan))
    one, other = sorted(Path().glob("x.tiny.*lengths"))
    said = succeeded(planner_cli("check", plan, "--lengths", one, "--lengths", other))
    assert "not looked at" not in said.err
    out = "x"
    answer = succeeded(executor_cli("run", plan, "-o", out))
    found = {line.step: line.loss for line in runlog.load(out).evaluations}
    assert "val_loss: tiny" in answer.out
    samples = [of_step(step, BATCH, len(LENGTHS)).tolist() for step in range(STEPS)]
    alone = loop([[[n] for n in own] for own in samples], [[n] for n in range(HELD)])
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=0)
    if (devices, packing) == (1, "balanced"):
        rows = open_table(table_path(plan, "tiny"), BATCH).tolist()
        row = np.fromfile(table_path(plan, "tiny.evaluation"), ENTRY).tolist()
        steps = [groups(*pair) for pair in zip(rows, samples, strict=True)]
        assert found == loop(steps, groups(row, range(HELD)))
