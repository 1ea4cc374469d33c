"""All that `show` and `compare` print of small plans, word by word; and `show` as a command."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from support import handmade, noded, sketched, timetables
from support.cli import planner_cli, refused, succeeded
from support.kinded import kinded
from support.stored import as_stored

import plans
from planner.views import describe_alternatives
from planner.views.compare import compare
from planner.views.compare_table import table
from planner.views.show import describe
from plans.prediction import Alternative
from plans.schema import Plan

SAMPLE = Path(plans.__file__).with_name("sample.json")


def _tried(layout: str, order: str, period: int, bound: int, why_not: str = "") -> Alternative:
    said = {"period_us": period, "bound_us": bound, "peak_bytes": 3 << 20, "why_not": why_not}
    return Alternative(task="a", devices=2, layout=layout, order=order, microbatch=2, **said)


def tried() -> Plan:
    """A plan that was simulated in three ways, of which the longest has the least bound."""
    plan = handmade.pipeline()
    alternatives = (
        _tried("1x2", "gpipe", 0, 900, "its bound is longer than 2x1 takes"),
        _tried("2x1", "gpipe", 800, 600, "takes longer"),
        _tried("2x1", "1f1b", 700, plan.programs[0].period_us * 3 // 4),
        _tried("1x2", "breadth", 750, 700, "takes longer"),
    )
    solver = replace(plan.solver, alternatives=alternatives, looked_at={"a": 31})
    return replace(plan, solver=solver)


def turns(count: int) -> Plan:
    """A plan of many segments."""
    plan = timetables.plan()
    return replace(plan, segments=plan.segments * count)


def part(text: str, head: str) -> str:
    return next(one for one in text.split("\n\n") if one.startswith(head))


def compared(percent: int, *, emulated: bool = False) -> str:
    plan = timetables.plan(emulated=emulated)
    log = timetables.log(plan, percent=percent)
    return table(compare(plan, replace(log, steps=log.steps[::-1]), timetables.PLAN_SHA256))


KINDS = kinded("resident", [[512, 512], [256], [512]], ((0, 2), (1, 3), (0, 1)))
TEXTS = {
    "tasks": lambda: describe(timetables.plan(emulated=True), rounds=False),
    "tiny": lambda: describe(timetables.tiny()),
    "long rounds": lambda: describe(timetables.plan(shards=7)).partition("\nround of d")[2],
    "many streams": lambda: describe(sketched.plan(32, 32))[-500:],
    "turns": lambda: part(describe(turns(34)), "segments"),
    "pipeline": lambda: describe(tried()),
    "replicas": lambda: describe(sketched.plan(depth=2, replicas=[3, 1], split=True)),
    "many devices": lambda: describe(sketched.plan(2, 16, replicas=16), rounds=False),
    "nodes": lambda: part(describe(noded.turns()), "devices"),
    "kinds of rounds": lambda: describe(KINDS),
    "alternatives": lambda: describe_alternatives(tried()),
    "slower": lambda: compared(110),
    "faster": lambda: compared(80, emulated=True),
}


@pytest.mark.parametrize("name", TEXTS)
def test_words(name: str) -> None:
    """Every table with its rows in order, its numbers and their units."""
    as_stored(name, TEXTS[name]())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--alternatives --task nobody", "the plan has no task 'nobody'; it has gpt-1e-4, "),
        ("--task gpt-1e-4", "--task says of which task --alternatives tells; give"),
        ("--round gpt-1e-4", "give --gantt too"),
        ("--copies", "--copies says what --gantt draws; give --gantt too"),
        ("--gantt new.png --round gpt-1e-4:50", "gpt-1e-4 has the rounds 0 to 49"),
    ],
)
def test_questions_without_an_answer_are_usage_errors(
    options: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, and no picture."""
    monkeypatch.chdir(tmp_path)
    refused(planner_cli("show", SAMPLE, *options.split()), 2, text)
    assert list(tmp_path.iterdir()) == []


def test_json_of_a_plan_is_what_build_prints() -> None:
    """Makespan, bound and gap for scripts."""
    found = json.loads(succeeded(planner_cli("show", SAMPLE, "--json")).out)
    assert found["makespan_us"] >= found["lower_bound_us"] > 0


def test_alternatives_are_words_or_json(tmp_path: Path) -> None:
    """Of all tasks or of the one that was asked for, the way in the plan first."""
    plan, path = tried(), tmp_path / "plan.json"
    plans.save(path, plan)
    for options in ((), ("--task", "a")):
        told = succeeded(planner_cli("show", path, "--alternatives", *options)).out
        assert describe_alternatives(plan) in told
    found = json.loads(succeeded(planner_cli("show", path, "--alternatives", "--json")).out)
    assert [one["period_us"] for one in found] == [700, 750, 800, 0]
    assert found[0]["why_not"] == ""


def test_a_plan_without_alternatives_says_so() -> None:
    plan = timetables.tiny()
    assert describe_alternatives(plan).startswith("no task was looked at on several devices")
    name = plan.tasks[0].name
    assert describe_alternatives(plan, name).startswith(f"task {name} was not looked at")
