"""Earliest starts: what is asked of `build` is in the plan, and its timetable keeps it."""

from pathlib import Path

import pytest
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, succeeded

import plans
import profiles


@pytest.mark.parametrize("options", [(), ("--segment-steps", 40)])
def test_a_start_is_in_the_plan(
    options: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run finds it, and `show` says it; no segment of the task is predicted before."""
    monkeypatch.chdir(tmp_path)
    task = synthetic.task("t", layers=2, seed=1, batch=2)
    tasks = [structs.replace(task, name=n, steps=100) for n in "ab"]
    profiles.save("p.json", synthetic.profile(*tasks, usable_bytes=64 << 20))
    succeeded(planner_cli("build", "p.json", "-o", "plan.json", "--start", "a=2s", *options))
    plan = plans.load("plan.json")
    assert {task.name: task.start_us for task in plan.tasks} == {"a": 2_000_000, "b": 0}
    starts = [s.start_us for s in plan.segments if s.program == "a"]
    assert min(starts) >= 2_000_000
    assert "not before 2.00 s" in succeeded(planner_cli("show", "plan.json")).out
