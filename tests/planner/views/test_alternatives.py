"""What else was tried, as a plan keeps it."""

import json
from pathlib import Path

import msgspec
from support import handmade, timetables
from support.cli import planner_cli, refused, succeeded

import plans
from planner.views import describe_alternatives
from plans.prediction import Alternative
from plans.schema import Plan

replace = msgspec.structs.replace


def _told(name: str, order: str, period: int, bound: int, why_not: str) -> Alternative:
    return Alternative(
        task="a",
        devices=2,
        layout=name,
        order=order,
        microbatch=2,
        period_us=period,
        bound_us=bound,
        peak_bytes=3 << 20,
        why_not=why_not,
    )


TRIED = (
    _told("1x2", "gpipe", 0, 900, "its bound is longer than 2x1 takes"),
    _told("2x1", "gpipe", 800, 600, "takes longer"),
    _told("2x1", "1f1b", 700, 600, ""),
    _told("1x2", "breadth", 750, 700, "takes longer"),
)


def _plan() -> Plan:
    plan = handmade.pipeline()
    return replace(plan, solver=replace(plan.solver, alternatives=TRIED, looked_at={"a": 31}))


def test_the_best_comes_first_and_what_was_never_simulated_last() -> None:
    """The plan's own way, the others by period, then by bound those left for it."""
    lines = describe_alternatives(_plan()).splitlines()
    assert lines[0] == "a: 4 of 31 way(s) to train it"
    rows = [line.split() for line in lines[2:]]
    assert [(row[1], row[2]) for row in rows] == [
        ("2x1", "1f1b"),
        ("1x2", "breadth"),
        ("2x1", "gpipe"),
        ("1x2", "gpipe"),
    ]
    assert lines[2].endswith("in the plan")
    assert " 700 µs  600 µs  3.0 MiB  in the plan" in lines[2]
    assert lines[-1].endswith("-       900 µs  3.0 MiB  its bound is longer than 2x1 takes")


def test_the_command_prints_them_as_words_or_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plans.save(path, _plan())
    assert (
        describe_alternatives(_plan()) in succeeded(planner_cli("show", path, "--alternatives")).out
    )
    told = json.loads(succeeded(planner_cli("show", path, "--alternatives", "--json")).out)
    assert [one["period_us"] for one in told] == [700, 750, 800, 0]
    assert told[0]["why_not"] == ""
    one = ("show", path, "--alternatives", "--task", "a")
    assert describe_alternatives(_plan()) in succeeded(planner_cli(*one)).out
    refused(planner_cli(*one[:-1], "b"), 2, "the plan has no task 'b'; it has a")


def test_a_plan_without_them_says_so() -> None:
    plan = timetables.tiny()
    assert describe_alternatives(plan).startswith("no task was looked at on several devices")
    name = plan.tasks[0].name
    assert describe_alternatives(plan, name).startswith(f"task {name} was not looked at")
