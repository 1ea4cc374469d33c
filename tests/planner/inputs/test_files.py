"""Microbatches that are asked for: what was not measured, or is said twice, is refused."""

from pathlib import Path

import pytest
from support import synthetic
from support.cli import nothing_written, planner_cli, refused, succeeded

import plans
import profiles

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = [synthetic.task(name, layers=3, seed=1, batch=4) for name in ("a", "b")]
    profiles.save("x.json", synthetic.profile(*tasks, usable_bytes=64 << 20))


BUILD = ("build", "x.json", "-o", "plan.json")


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [(("1",), [1, 1]), (("b=1", "2"), [2, 1]), (("a=4", "b=2"), [4, 2]), (("1", "b=4"), [1, 4])],
)
def test_tasks_have_the_microbatches_asked_for(asked: tuple[str, ...], sizes: list[int]) -> None:
    """What is said of one task counts more than what is said of all, in any order."""
    succeeded(planner_cli(*BUILD, *(part for one in asked for part in ("--microbatch", one))))
    assert [task.microbatch for task in plans.load("plan.json").tasks] == sizes


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (("3",), "a: microbatch 3 was not measured, only 1, 2, 4"),
        (("b=8",), "b: microbatch 8 was not measured, only 1, 2, 4"),
        (("c=1",), "--microbatch: there is no task 'c', only a, b"),
        (("1", "2"), "give it once"),
        (("a=1", "a=1"), "give it once"),
        (("few",), "argument --microbatch: 'few' is not a whole number"),
    ],
)
def test_others_are_refused(asked: tuple[str, ...], text: str) -> None:
    """In one line, and nothing is written."""
    with nothing_written():
        answer = planner_cli(*BUILD, *(part for one in asked for part in ("--microbatch", one)))
    refused(answer, 2, text)
