"""Plan against run."""

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from support import sketched, timetables
from support.cli import planner_cli, refused, succeeded

import plans
from planner.views.compare import Comparison, Ratio, compare
from planner.views.compare_table import table, to_json
from planner.views.differences import differences, reasons
from plans import runlog, timing
from plans.runlog import OpRecord
from plans.schema import Plan
from plans.timing import device_times
from profiles.codec import sha256
from profiles.errors import FormatError

replace = msgspec.structs.replace
SHA = timetables.PLAN_SHA256


def test_run_ten_percent_slower_than_planned() -> None:
    """Every time a tenth longer: makespan, ops, kinds and tasks are a tenth off."""
    plan = timetables.plan()
    found = compare(plan, timetables.log(plan, percent=110), SHA)
    assert found.makespan_error == pytest.approx(0.1)
    assert found.median_op_error == pytest.approx(0.1)
    assert {kind: times.value for kind, times in found.kinds.items()} == pytest.approx(
        dict.fromkeys("FBUPS", 1.1)
    )
    alone = [t for name, t in found.tasks.items() if name != "b"]  # b is within a's segment
    assert all(t.actual == pytest.approx(1.1 * t.predicted) for t in alone)
    assert [one.value for one in found.exposed_copies] == pytest.approx([1.1] * 2)
    assert not found.missing


def test_metered_ops_do_not_blur_the_errors() -> None:
    """The memory meter slows its round down; the median and the sums are of the other rounds."""
    plan = timetables.plan()
    log = timetables.log(plan, percent=100)
    slow = tuple(
        replace(op, end_us=op.end_us + 900, metered=True) if op.round < 3 else op for op in log.ops
    )
    found = compare(plan, replace(log, ops=slow), SHA)
    assert found.median_op_error == 0
    assert found.kinds["B"].value == 1


def test_log_of_another_plan_is_refused_in_one_line() -> None:
    plan = timetables.plan()
    with pytest.raises(FormatError, match=r"sha256 aaaaaaaaaaaa…, this plan has cccc") as caught:
        compare(plan, timetables.log(plan), "c" * 64)
    assert "\n" not in str(caught.value)


def test_killed_run_is_compared_as_far_as_it_came() -> None:
    """Without an end the last op's time counts, missing ops are named, peaks are unknown."""
    plan = timetables.plan()
    log = timetables.log(plan)
    found = compare(plan, replace(log, ops=log.ops[:-3], end=None), SHA)
    assert found.status == "killed"
    assert found.makespan.actual == max(op.end_us for op in log.ops[:-3])
    assert [one.actual for one in found.peaks] == [None, None]
    assert to_json(found)["peak_bytes"]["actual"] == []
    assert found.missing == tuple(f"{op.op} round {op.round}" for op in log.ops[-3:])


def test_what_was_run_is_compared_with_what_was_planned_up_to_there() -> None:
    """A run a tenth slower than planned, interrupted after two of four rounds, and its state
    written: it is a tenth off, not three fifths."""
    plan = timetables.plan(rounds=4)
    log = timetables.log(plan, percent=110)
    leave = {op.id for program in plan.programs for op in program.leave}
    ran = [op for op in log.ops if op.op not in leave and op.round < 2]
    last = max(op.end_us for op in ran)
    ran += [replace(op, start_us=last, end_us=last + 1) for op in log.ops if op.op in leave]
    end = replace(log.end, status="interrupted", actual_us=last + 1)
    found = compare(plan, replace(log, ops=tuple(ran), end=end), SHA)
    assert found.makespan_error == pytest.approx(0.1, abs=0.01)
    for one in (*found.tasks.values(), *found.exposed_copies):
        assert one.actual == pytest.approx(1.1 * one.predicted, rel=0.01)
    assert "so far" in table(found)


def test_json_has_the_documented_keys_and_is_json() -> None:
    """Scripts rely on these names; exposed copies are sums, peaks are per device."""
    plan = timetables.plan()
    found = json.loads(json.dumps(to_json(compare(plan, timetables.log(plan), SHA))))
    assert found["predicted_us"] == plan.prediction.makespan_us
    assert found["makespan_error"] == pytest.approx(0.1)
    assert found["gap"] == pytest.approx(0.1)
    assert found["lower_bound_name"] == "link"
    exposed = sum(device.exposed_copy_us for device in device_times(plan))
    assert found["exposed_copy_us"]["predicted"] == exposed
    assert found["peak_bytes"] == {"predicted": [5 << 20] * 2, "actual": [4 << 20] * 2}
    assert found["tasks"]["a"]["first_loss"] == 4.0
    assert found["kinds"]["F"]["ratio"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("predicted_us", "actual_us", "told"),
    [
        (8_000, 144_000, "+136.0 ms"),
        (8_000, 7_990, "-10 µs"),
        (0, 136_000, "+136.0 ms"),
        (0, 0, "+0 µs"),
        (5_000_000, 5_500_000, "+10.0%"),
    ],
)
def test_errors_of_small_quantities_are_differences(
    predicted_us: int, actual_us: int, told: str
) -> None:
    """A share of next to nothing says little; one of a good part of the makespan says much."""
    plan = timetables.plan()
    found = dataclasses.replace(
        compare(plan, timetables.log(plan), SHA),
        makespan=Ratio(10_000_000, 10_000_000),
        exposed_copies=(Ratio(predicted_us, actual_us),),
    )
    row = next(line for line in table(found).splitlines() if line.startswith("exposed copies 0"))
    assert row.endswith(f" {told}")


def test_sends_and_sums_of_replicas_are_compared_by_kind() -> None:
    """X of a slow link stand out, R are as predicted, and only compute counts in the median."""
    plan = sketched.plan(2, replicas=2, split=True)
    log = timetables.log(plan, percent=100)
    ops = [
        replace(op, end_us=2 * op.end_us - op.start_us) if ".X" in op.op else op for op in log.ops
    ]
    found = compare(plan, replace(log, ops=tuple(ops)), SHA)
    assert {kind: one.value for kind, one in found.kinds.items()} == {
        **dict.fromkeys("FIWUR", 1),
        "X": 2,
    }
    assert found.median_op_error == 0
    rows = [line.split()[0] for line in table(found).split("\n\n")[2].splitlines()]
    assert rows == ["kind", "F", "I", "W", "U", "R", "X"]


def compared(slowed: dict[int, float], ranks: tuple[int, ...] = (), late: float = 2) -> Comparison:
    """A run that took `late` times as long as planned, in which ops of these devices took so many
    times as long, and all others as long as planned; each device in a process, or all in one."""
    plan = timetables.plan()
    log = timetables.log(plan, percent=100)
    streams = [one.stream for one in timing.timeline(plan)]

    def changed(op: OpRecord, stream: str) -> OpRecord:
        device = timing.rank(stream)[0]
        end_us = op.start_us + round((op.end_us - op.start_us) * slowed.get(device, 1))
        return replace(op, end_us=end_us, rank=ranks[device] if ranks else msgspec.UNSET)

    ops = tuple(changed(op, stream) for op, stream in zip(log.ops, streams, strict=True))
    end = replace(log.end, actual_us=round(plan.prediction.makespan_us * late))
    return compare(plan, replace(log, ops=ops, end=end), timetables.PLAN_SHA256)


def slow_lines(found: Comparison) -> list[str]:
    return [line for line in table(found).splitlines() if line.startswith("slow: ")]


def test_a_slow_device_is_named_with_its_process() -> None:
    """And what it takes, against the plan and the others; each device has its row."""
    found = compared({1: 2.1}, ranks=(0, 1))
    (line,) = slow_lines(found)
    told = "slow: device 1 (process 1) computes and copies 2.10 times as long as planned, "
    assert line.startswith(told)
    assert "the others 1.00 times" in line
    rows = [line.split() for line in table(found).splitlines() if line.startswith("device ")]
    assert [(*row[:3], *row[-2:]) for row in rows] == [
        ("device", "0", "0", "+0.0%", "+0.0%"),
        ("device", "1", "1", "+110.0%", "+110.0%"),
    ]
    said = json.loads(json.dumps(to_json(found)))
    assert said["slow_device"] == 1
    assert [one["ratio"] for one in said["devices"]] == pytest.approx([1, 2.1], rel=0.01)


@pytest.mark.parametrize(
    ("slowed", "late"),
    [({1: 1.05}, 2), ({}, 2), ({0: 1.5, 1: 1.4}, 2), ({1: 0.5}, 2), ({1: 1.5}, 1.1)],
)
def test_what_no_device_is_to_blame_for_names_none(slowed: dict[int, float], late: float) -> None:
    """Noise, all devices alike, one that is faster than planned; a run that is hardly late."""
    found = compared(slowed, (0, 1), late)
    assert not slow_lines(found)
    assert to_json(found)["slow_device"] is None


SAMPLE = Path(plans.__file__).with_name("sample.json")


@pytest.fixture(scope="module")
def sample() -> Plan:
    return plans.load(SAMPLE)


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


def test_a_folder_has_the_run_of_an_earlier_plan(tmp_path: Path, sample: Plan) -> None:
    """As of a sweep's rung, which later ones went on from: it is compared with its own log."""
    log = timetables.log(sample)
    later = replace(log.header, plan_sha256="0" * 64)
    own = replace(log.header, plan_sha256=sha256(SAMPLE.read_bytes()))
    for name, header in (("log.1.jsonl", own), (runlog.LOG, later)):
        (tmp_path / name).write_bytes(runlog.encode([header, *log.ops, *log.steps]))
    assert "run killed" in succeeded(planner_cli("compare", SAMPLE, tmp_path)).out
    page = tmp_path / "page.html"
    succeeded(planner_cli("report", SAMPLE, tmp_path, "-o", page))


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
