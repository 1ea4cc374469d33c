"""Plan against run."""

import dataclasses
import json

import msgspec
import pytest
from support import sketched, timetables

from planner.views.compare import Ratio, compare
from planner.views.compare_table import table, to_json
from plans.timing import device_times
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
    """Both hashes and the remedy are in the message."""
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


def test_run_killed_before_its_first_op_has_no_errors_to_show() -> None:
    """An empty log is compared without dividing by nothing."""
    plan = timetables.plan()
    found = compare(plan, replace(timetables.log(plan), ops=(), steps=(), end=None), SHA)
    assert (found.makespan.actual, found.median_op_error, found.kinds) == (0, None, {})
    assert found.losses["a"] == (None, None)
    assert "-" in table(found)


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
