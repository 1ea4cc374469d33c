"""Workload references, every way in which they can be wrong, what microbatches count, the demo."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from executor.errors import RunError, WorkloadError
from executor.workload import Batch, Task, build, load, part, shares
from executor.workloads import bytes_lm

pytestmark = pytest.mark.usefixtures("quick")


GOOD = """
import torch
from executor.workload import Task

def make(name):
    return Task(name, lambda: torch.nn.Linear(2, 2), print, None, None, steps=1)

def tasks():
    return [make("a"), make("b")]

def raises():
    return 1 / 0

def none():
    return []

def twice():
    return [make("a"), make("a")]

def badly_named():
    return [make("a b")]

def other():
    return 7

def no_steps():
    return [Task("a", None, None, None, None, steps=0)]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(GOOD)
    return path


def test_tasks_of_a_file(file: Path) -> None:
    """A file's function gives its tasks."""
    assert [task.name for task in load(f"{file}:tasks")[0]] == ["a", "b"]


def test_tasks_of_a_module() -> None:
    """A module's function works in the same way."""
    tasks, said = load("support.toys:pair")
    assert [task.name for task in tasks] == ["one", "two"] == list(said)


def test_a_changed_file_is_read_again(file: Path) -> None:
    """Loading twice in one process never gives the tasks of an older file."""
    load(f"{file}:tasks")
    file.write_text(GOOD.replace('make("b")', 'make("c")'))
    assert [task.name for task in load(f"{file}:tasks")[0]] == ["a", "c"]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("missing", "has no function 'missing'"),
        ("raises", r"raises\(\) raised ZeroDivisionError: division by zero"),
        ("none", "returned an empty list"),
        ("twice", "two tasks are named a"),
        ("badly_named", "name is 'a b'; it must be of letters"),
        ("other", "returned int, not a list of executor.workload.task.Task"),
        ("no_steps", "task a: steps is 0; it must"),
        ("not a name", "a workload is file.py:function"),
    ],
)
def test_bad_functions(file: Path, function: str, text: str) -> None:
    """One sentence that begins with the reference."""
    with pytest.raises(WorkloadError, match=text) as caught:
        load(f"{file}:{function}")
    assert str(caught.value).startswith(f"{file}:{function}: ")


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        ("nowhere.py:tasks", "there is no file nowhere.py"),
        ("no.such.module:tasks", "there is no module no.such.module"),
        ("tasks", "a workload is file.py:function"),
        (":tasks", "a workload is file.py:function"),
    ],
)
def test_bad_references(ref: str, text: str) -> None:
    """A file, a module or a form that does not exist."""
    with pytest.raises(WorkloadError, match=text):
        load(ref)


@pytest.mark.parametrize("body", ["import nothing_like_this", "1 +", "raise SystemExit(3)"])
def test_files_that_cannot_be_imported(tmp_path: Path, body: str) -> None:
    """Whatever a file does while it is imported becomes one line."""
    path = tmp_path / "bad.py"
    path.write_text(body)
    with pytest.raises(WorkloadError, match=r"importing .*bad\.py raised"):
        load(f"{path}:tasks")


def test_build_seeds_and_remembers() -> None:
    """The seed decides the parameters, and the generator's state is that after building."""

    def task(seed: int) -> Task:
        return Task("a", lambda: nn.Linear(3, 3), None, None, None, 1, seed)  # type: ignore[arg-type]

    model, state = build(task(4))
    torch.manual_seed(4)
    assert torch.equal(nn.Linear(3, 3).weight, model.weight)  # type: ignore[arg-type]
    assert torch.equal(torch.default_generator.get_state(), state)
    assert model.training


def test_build_refuses_what_is_no_module() -> None:
    """A factory that raises or gives something else is told by the task's name."""
    for factory, text in ((lambda: 3, "returned int"), (lambda: 1 / 0, "ZeroDivisionError")):
        with pytest.raises(WorkloadError, match=f"task a: .*{text}"):
            build(Task("a", factory, None, None, None, 1))  # type: ignore[arg-type]


TARGETS = torch.tensor([[1, -100], [-100, -100], [2, 3], [4, 5]])


def shared(weigh: Callable[[Any], Any] | None, size: int, targets: torch.Tensor = TARGETS) -> Any:
    batch = Batch(torch.zeros(4, 2), targets)
    return shares(weigh, batch, [part(batch, n, size) for n in range(0, 4, size)])


def valid(batch: Any) -> torch.Tensor:
    return (batch[1] != -100).sum()


def test_each_counts_its_part_of_the_whole() -> None:
    """One that counts nothing has no part, and equal ones have the same bits as without weights."""
    assert [share.divisor for share in shared(valid, 1)] == [5, math.inf, 2.5, 2.5]
    assert {share.total for share in shared(valid, 1)} == {5}
    assert shared(lambda _: 7 / 3, 4) == [(1, 7 / 3)]
    alike = [share.divisor for share in shared(lambda batch: 0.1 * len(batch[0]), 2)]
    assert alike == [share.divisor for share in shared(None, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("weight", "targets", "said"),
    [
        (lambda _: -1, TARGETS, "weight gave -1; it must be a number from 0 on"),
        (lambda _: math.nan, TARGETS, "weight gave nan"),
        (lambda _: "all", TARGETS, "weight gave str"),
        (lambda _: 3, TARGETS, "weight gave 3 of the batch and 6 of its 2 microbatches together"),
        (valid, TARGETS * 0 - 100, "the weight of the whole batch is 0"),
    ],
)
def test_what_is_no_weight_is_refused(weight: Any, targets: torch.Tensor, said: str) -> None:
    with pytest.raises(RunError, match=said):
        shared(weight, 2, targets)


@pytest.mark.parametrize("task", [*bytes_lm.demo(), *bytes_lm.tiny()], ids=lambda t: t.name)
def test_data_depends_on_the_step_alone(task: Task) -> None:
    """The same step gives the same batch however the default generator stands, another another."""
    torch.manual_seed(1)
    inputs, targets = task.data(3)
    torch.manual_seed(2)
    again, _ = task.data(3)
    other, _ = task.data(4)
    assert torch.equal(inputs, again)
    assert not torch.equal(inputs, other)
    assert inputs.shape == targets.shape
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_data_leaves_the_default_generator_alone() -> None:
    """Drawing a batch neither reads nor advances torch's default generator."""
    before = torch.default_generator.get_state()
    bytes_lm.tiny()[0].data(0)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_logits_see_no_later_bytes() -> None:
    """Changing the last byte of a window changes the last position's logits only."""
    model = bytes_lm.gpt(width=32, blocks=2, heads=2, length=16, dropout=0.0)
    tokens, _ = bytes_lm.tiny()[0].data(0)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    same = (model(tokens) - model(changed)).abs().amax(dim=(0, 2)) == 0
    assert same[:-1].all()
    assert not same[-1]
