"""Several tasks in one plan, two of which have samples with lengths, from a profile to bits."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from support.chains import chain
from support.cli import executor_cli, planner_cli, profile, succeeded
from support.plain import train
from support.small_texts import groups
from support.texted import Parts, joined, trained
from torch import Tensor
from torch.optim import AdamW

import plans
from executor.workload import Task
from executor.workloads import documents
from plans.samples import open_table, table_path
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick", "untimed")

Saved = dict[str, dict[str, Tensor]]
SIZES = ("--lengths", "64,128,256,512", "--device-memory", "8MiB")


def text(name: str, longest: int, batch: int, steps: int) -> Task:
    return Task(
        name=name,
        model=partial(documents.Model, width=16, blocks=2, heads=2, longest=512),
        data=partial(documents.samples, longest=longest),
        loss=documents.next_byte_loss,
        optimizer=partial(AdamW, lr=1e-3),
        steps=steps,
        seed=batch,
        lengths=documents.lengths(longest),
        batch=batch,
    )


def tasks() -> list[Task]:
    return [
        text("short", 256, 4, 4),
        text("long", 512, 6, 6),
        chain("rows", 2, 4, 8, seed=1),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile x.json, the plan p.json for two devices with a task on each, and its tables."""
    folder = tmp_path_factory.mktemp("texts")
    profile(f"{__file__}:tasks", str(folder / "x.json"), *SIZES)
    call = ("build", folder / "x.json", "--devices", 2, "--layout", "1x1", "--packing", "ffd")
    succeeded(planner_cli(*call, "-o", folder / "p.json"))
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> Saved:
    """The parameters that loops without Gantry train, in the same microbatches."""
    one, two, three = tasks()
    found = {task.name: loop(task, folder / "p.json") for task in (one, two)}
    planned = plans.load(folder / "p.json").task("rows")
    return {**found, "rows": train(three, planned.microbatches).params}


def loop(task: Task, path: Path) -> dict[str, Tensor]:
    """Microbatch by microbatch as the table of the task has them."""
    rows = open_table(table_path(path, task.name), task.batch).tolist()

    def of(step: int) -> list[int]:
        return [(step * task.batch + j) % len(task.lengths) for j in range(task.batch)]

    def parts(step: int) -> Parts:
        return (part for own in groups(rows[step], of(step)) for part in joined(task.data(own)))

    return trained(task, parts, of).params


def saved(folder: Path, names: Sequence[str]) -> Saved:
    return {name: torch.load(folder / f"{name}.pt")["model"] for name in names}


def assert_bits(found: Saved, expected: Saved) -> None:
    for task, own in found.items():
        for name, value in own.items():
            assert torch.equal(value, expected[task][name]), (task, name)


def placed(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {segment.program: segment.devices for segment in plan.segments}


def test_each_task_trains_as_by_itself(folder: Path, plain: Saved, tmp_path: Path) -> None:
    """To the last bit, two of them at the same time; profile, plan and tables belong together."""
    plan = plans.load(folder / "p.json")
    assert len(set(placed(plan).values())) == 2
    lengths = [folder / f"x.{name}.lengths" for name in ("short", "long")]
    check = ("check", folder / "p.json", "--lengths", lengths[0], "--lengths", lengths[1])
    answer = succeeded(planner_cli(*check))
    assert not answer.err
    call = ("run", folder / "p.json", "-o", tmp_path / "x")
    succeeded(executor_cli(*call))
    assert_bits(saved(tmp_path / "x", ["short", "long", "rows"]), plain)
    told = succeeded(planner_cli("compare", folder / "p.json", tmp_path / "x")).out
    assert all(f"\n{name} " in told for name in ("short", "long", "rows"))


def test_a_task_that_fails_leaves_the_others_their_bits(
    folder: Path, plain: Saved, tmp_path: Path
) -> None:
    """With --keep-going, also that which trains on its device after it."""

    real = documents.samples

    def data(samples: Sequence[int], *, longest: int) -> Any:
        if longest == 512 and 18 in samples:  # the fourth step of "long"
            raise OSError("the cable is out")
        return real(samples, longest=longest)

    with mock.patch.object(documents, "samples", data):
        call = ("run", folder / "p.json", "-o", tmp_path / "x")
        answer = executor_cli(*call, "--keep-going", "--trust-workload")
    assert answer.code == 1
    assert "the cable is out" in answer.out + answer.err
    assert not (tmp_path / "x" / "long.pt").exists()
    assert_bits(saved(tmp_path / "x", ["short", "rows"]), plain)
