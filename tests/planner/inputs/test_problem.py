"""Segments that end where tasks can be kept."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import synthetic
from support.cli import planner_cli, succeeded

import plans
import profiles
from planner import build
from planner.inputs import Layout
from plans.timing import duration_us

pytestmark = pytest.mark.usefixtures("quick")


def test_segments_end_after_so_many_steps() -> None:
    """Same steps, same order, each piece as long as the simulator says; the rest is proven."""
    tasks = [synthetic.task(f"t{n}", layers=3, steps=40, batch=1, seed=n % 2) for n in range(3)]
    asked = synthetic.problem(*tasks, usable_bytes=8 << 20, bytes_per_s=10**9, devices=2)
    asked = replace(asked, layout=Layout(((1,),)))  # each task on one device
    whole = build(asked, profile_sha256="0" * 64)
    parts = build(replace(asked, segment_steps=7), profile_sha256="0" * 64)
    programs = {program.name: program for program in parts.programs}
    assert max(segment.rounds for segment in parts.segments) == 7
    for segment in parts.segments:
        us = duration_us(programs[segment.program], segment.rounds)
        assert segment.end_us - segment.start_us == us
    assert parts.prediction.makespan_us >= whole.prediction.makespan_us
    assert plans.violations(parts) == []


def test_the_option_of_build(tmp_path: Path) -> None:
    """The last segment has what is left."""
    made = synthetic.task("a", layers=3, steps=10, batch=2)
    profiles.save(tmp_path / "p.json", synthetic.profile(made, usable_bytes=64 << 20))
    call = ("build", tmp_path / "p.json", "-o", tmp_path / "plan.json")
    succeeded(planner_cli(*call, "--segment-steps", 4))
    plan = plans.load(tmp_path / "plan.json")
    assert [segment.rounds for segment in plan.segments] == [4, 4, 2]
