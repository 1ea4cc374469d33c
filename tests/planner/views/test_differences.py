"""Two plans side by side: what differs, in words and numbers that add up."""

import json
from pathlib import Path

import pytest
from msgspec import structs
from support.cli import planner_cli, refused, succeeded

import plans
from planner.views.differences import differences, reasons
from planner.views.stalls import parts_of_round
from plans.schema import Plan

SAMPLE = Path(plans.__file__).with_name("sample.json")


@pytest.fixture(scope="module")
def sample() -> Plan:
    return plans.load(SAMPLE)


def test_the_parts_of_a_round_are_all_of_it(sample: Plan) -> None:
    """What a device computes and what it waits for take the whole period."""
    for program in sample.programs:
        assert sum(parts_of_round(sample, program).values()) == program.period_us


def test_what_differs_is_told_once(sample: Plan) -> None:
    """Of the whole, and of tasks, those that differ alike together; what is the same is left out,
    and where the time goes has the sign of the second plan."""
    program, *rest = sample.programs
    last = max(program.round, key=lambda op: op.end_us * op.stream.endswith("compute"))
    slower = structs.replace(last, end_us=last.end_us + 1000)
    made = structs.replace(
        program,
        period_us=program.period_us + 1000,
        round=tuple(slower if op is last else op for op in program.round),
    )
    prediction = structs.replace(sample.prediction, makespan_us=2 * sample.prediction.makespan_us)
    tasks = tuple(structs.replace(task, steps=51) for task in sample.tasks)
    other = structs.replace(
        sample, programs=(made, *rest), prediction=prediction, tasks=tasks, provenance={"a": "b"}
    )
    assert differences(sample, structs.replace(sample, provenance={"a": "b"})) == []
    names = tuple(task.name for task in sample.tasks)
    of = {(one.what, one.of): (one.first, one.second) for one in differences(sample, other)}
    mine = program.tasks
    assert (
        of["steps", mine] == of["steps", tuple(n for n in names if n not in mine)] == ("50", "51")
    )
    assert ("makespan", ()) in of
    assert ("round every", mine) in of
    assert not [what for what, _ in of if what in ("layout", "updates", "devices")]
    head, *told = reasons(sample, other)
    assert head.startswith("the first is faster: 30.43 s, 50.0% less")
    assert len(told) == 1
    assert told[0].startswith(f"{mine[0]}: a round +1.0 ms: ")
    assert "+1.0 ms" in told[0].partition(": ")[2].partition(": ")[2]


def test_the_command(tmp_path: Path, sample: Plan) -> None:
    """A plan instead of a run log; what is about runs is refused."""
    other = tmp_path / "other.json"
    plans.save(other, structs.replace(sample, provenance={"made": "again"}))
    same = succeeded(planner_cli("compare", SAMPLE, other)).out
    assert same.endswith("nothing that counts differs\n")
    device = structs.replace(sample.devices[0], budget_bytes=1 << 30)
    plans.save(other, structs.replace(sample, devices=(device, device)))
    found = json.loads(succeeded(planner_cli("compare", SAMPLE, other, "--json")).out)[
        "differences"
    ]
    assert found == [
        {"of": [], "what": "devices", "first": "2 of 24.0 MiB", "second": "2 of 1.0 GiB"}
    ]
    text = succeeded(planner_cli("compare", SAMPLE, other)).out
    assert "2 of 1.0 GiB" in text
    assert "both take 30.43 s" in text
    refused(planner_cli("compare", SAMPLE, other, "--gantt", "x.png"), 2, "--gantt is about a run")
