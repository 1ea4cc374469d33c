"""Workload references, and every way in which they can be wrong."""

from pathlib import Path

import pytest
import torch
from torch import nn

from executor.errors import WorkloadError
from executor.workload import Task, build, load

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
