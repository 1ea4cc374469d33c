"""Pictures of steps, and the command that draws and describes them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli import planner_cli, refused, succeeded
from support.synthetic import profile
from support.texts import text_task

import profiles
from planner.charts import steps_chart
from profiles import lengths as files

LENGTHS = np.minimum(4096, np.random.default_rng(0).lognormal(6, 1, 70)).astype(np.uint32) + 8


def test_bars_are_times_over_bounds_from_the_largest_on() -> None:
    """A panel for each task, a bar for each step."""
    figure = steps_chart.figure({"one": [(100, 100), (300, 200)], "other": [(120, 100)]})
    first, second = ([bar.get_height() for bar in ax.patches] for ax in figure.axes)
    assert (first, second) == ([1.5, 1.0], [1.2])


@pytest.mark.usefixtures("quick")
def test_the_command_tells_all_steps_of_a_plan(tmp_path: Path) -> None:
    """In words and as JSON, with a picture; from no other profile than the plan's."""
    task = text_task(lengths=LENGTHS, batch=8, steps=12, formula=(2_000_000, 3_000_000, 50_000))
    path, plan, drawn = (str(tmp_path / name) for name in ("x.json", "p.json", "p.png"))
    profiles.save(path, profile(task, usable_bytes=1 << 30))
    files.save(path, "text", LENGTHS)
    succeeded(planner_cli("build", path, "--devices", "2", "-o", plan))
    asked = ("show", plan, "--steps", "--profile", path)
    assert succeeded(planner_cli(*asked, "--plot", drawn)).out.startswith("text: 12 steps, ")
    assert (tmp_path / "p.png").stat().st_size > 0
    found = json.loads(succeeded(planner_cli(*asked, "--json")).out)["text"]
    assert [one["step"] for one in found["steps"]] == list(range(12))
    assert 0 <= found["gap"] < 0.2
    profiles.save(path, profile(text_task(batch=2), usable_bytes=1 << 30))
    refused(planner_cli(*asked), 2, "the plan was not made from this profile")
