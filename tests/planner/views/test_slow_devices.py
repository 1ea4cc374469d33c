"""Devices that held a run up."""

import json

import msgspec
import pytest
from support import timetables

from planner.views.compare import Comparison, compare
from planner.views.compare_table import table, to_json
from plans import timing
from plans.runlog import OpRecord

replace = msgspec.structs.replace


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


def test_one_process_is_not_named() -> None:
    """Its slow device is."""
    (line,) = slow_lines(compared({0: 1.5}))
    assert line.startswith("slow: device 0 computes and copies 1.50 times")


@pytest.mark.parametrize(
    ("slowed", "late"),
    [({1: 1.05}, 2), ({}, 2), ({0: 1.5, 1: 1.4}, 2), ({1: 0.5}, 2), ({1: 1.5}, 1.1)],
)
def test_what_no_device_is_to_blame_for_names_none(slowed: dict[int, float], late: float) -> None:
    """Noise, all devices alike, one that is faster than planned; a run that is hardly late."""
    found = compared(slowed, (0, 1), late)
    assert not slow_lines(found)
    assert to_json(found)["slow_device"] is None
