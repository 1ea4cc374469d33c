"""Microbatches that are asked for."""

from pathlib import Path

import pytest
from support import synthetic
from support.cli import planner_cli, succeeded

import plans
import profiles

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [(("1",), [1, 1]), (("b=1", "2"), [2, 1]), (("a=4", "b=2"), [4, 2]), (("1", "b=4"), [1, 4])],
)
def test_tasks_have_the_microbatches_asked_for(
    asked: tuple[str, ...], sizes: list[int], tmp_path: Path
) -> None:
    """What is said of one task counts more than what is said of all, in any order."""
    tasks = [synthetic.task(name, layers=3, seed=1, batch=4) for name in "ab"]
    profiles.save(tmp_path / "x.json", synthetic.profile(*tasks, usable_bytes=64 << 20))
    call = ("build", tmp_path / "x.json", "-o", tmp_path / "plan.json")
    succeeded(planner_cli(*call, *(part for one in asked for part in ("--microbatch", one))))
    assert [task.microbatch for task in plans.load(tmp_path / "plan.json").tasks] == sizes
