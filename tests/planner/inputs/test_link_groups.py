"""Devices that share a link, and segments that end where tasks can be kept."""

from dataclasses import replace

import pytest
from support import synthetic
from support.cli import planner_cli, refused, succeeded

import plans
import profiles
from planner import Problem, build
from planner.inputs import Layout
from planner.inputs.link_groups import parse_groups, shared
from plans.timing import duration_us
from profiles.errors import FormatError

pytestmark = pytest.mark.usefixtures("quick")

GROUPS = ((0, 1), (2, 3))


def problem(devices: int = 4, tasks: int = 4) -> Problem:
    """Link-bound tasks on devices with little memory."""
    made = [
        synthetic.task(f"t{number}", layers=3, steps=40, batch=1, seed=number % 2)
        for number in range(tasks)
    ]
    profile = synthetic.profile(*made, usable_bytes=8 << 20, bytes_per_s=10**9)
    made = Problem.of(profile, devices=devices, device_bytes=None, host_bytes=None)
    return replace(made, layout=Layout((1,)))  # each task on one device


def test_sharing_a_link_is_slower_and_never_beats_a_bound() -> None:
    """Copies take twice as long; the bounds are those of links that the others leave alone."""
    alone = build(problem(), profile_sha256="0" * 64)
    both = build(shared(problem(), GROUPS), profile_sha256="0" * 64)
    assert both.prediction.makespan_us >= alone.prediction.makespan_us
    assert both.prediction.makespan_us >= both.prediction.lower_bound_us
    bounds = [{b.name: b.us for b in plan.prediction.bounds} for plan in (alone, both)]
    assert bounds[1]["phase"] == bounds[0]["phase"]
    assert abs(bounds[1]["link"] - 2 * bounds[0]["link"]) <= 1
    assert [device.link_group for device in both.devices] == [0, 0, 1, 1]
    assert both.devices[0].emulation == alone.devices[0].emulation


def test_what_is_no_group() -> None:
    """Every device once, in groups of one size."""
    with pytest.raises(FormatError, match=r"must name each of 0 to 3 once"):
        shared(problem(), ((0, 1), (2, 2)))
    with pytest.raises(FormatError, match=r"groups of \[1, 3\] devices"):
        shared(problem(), ((0, 1, 2), (3,)))
    with pytest.raises(ValueError, match="below 0"):
        parse_groups("0,-1")


def test_segments_end_after_so_many_steps() -> None:
    """Same steps, same order, each piece as long as the simulator says; the rest is proven."""
    asked = problem(devices=2, tasks=3)
    whole = build(asked, profile_sha256="0" * 64)
    parts = build(replace(asked, segment_steps=7), profile_sha256="0" * 64)
    programs = {program.name: program for program in parts.programs}
    assert max(segment.rounds for segment in parts.segments) == 7
    for segment in parts.segments:
        us = duration_us(programs[segment.program], segment.rounds)
        assert segment.end_us - segment.start_us == us
    assert parts.prediction.makespan_us >= whole.prediction.makespan_us
    assert plans.violations(parts) == []


def test_the_options_of_build(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both are options, and bad groups one line."""
    folder = tmp_path_factory.mktemp("sharing")
    made = synthetic.task("a", layers=3, steps=10, batch=2)
    profiles.save(folder / "p.json", synthetic.profile(made, usable_bytes=64 << 20))
    call = ("build", folder / "p.json", "-o", folder / "plan.json", "--devices", 2)
    succeeded(planner_cli(*call, "--link-groups", "0,1", "--segment-steps", 4))
    plan = plans.load(folder / "plan.json")
    assert [segment.rounds for segment in plan.segments] == [4, 4, 2]
    refused(planner_cli(*call, "--link-groups", "0"), 2, "must name each of 0 to 1 once")
    told = planner_cli(*call, "--link-groups", "0,x")
    assert told.code == 2
    assert "'0,x' is not like 0,1;2,3" in told.err
