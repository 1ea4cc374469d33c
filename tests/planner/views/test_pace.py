"""Devices that held a run up."""

import json

import msgspec
import pytest
from support import timetables

from planner.views.compare import Comparison, compare, table, to_json
from plans import timing
from plans.runlog import OpRecord

replace = msgspec.structs.replace


def compared(
    slowed: dict[int, float], ranks: tuple[int, ...] = (), percent: int = 100
) -> Comparison:
    """A run in which these devices computed so many times as long, each in a process or all in
    one; all times of the others are `percent` of the predicted ones."""
    plan = timetables.plan()
    log = timetables.log(plan, percent=percent)
    streams = [one.stream for one in timing.timeline(plan)]

    def changed(op: OpRecord, stream: str) -> OpRecord:
        device = int(stream.removeprefix("host.").split(".")[0])
        times = slowed.get(device, 1) if stream.endswith(".compute") else 1
        end_us = op.start_us + round((op.end_us - op.start_us) * times)
        return replace(op, end_us=end_us, rank=ranks[device] if ranks else msgspec.UNSET)

    ops = tuple(changed(op, stream) for op, stream in zip(log.ops, streams, strict=True))
    return compare(plan, replace(log, ops=ops), timetables.PLAN_SHA256)


def slow_lines(found: Comparison) -> list[str]:
    return [line for line in table(found).splitlines() if line.startswith("slow: ")]


def test_a_slow_device_is_named_with_its_process() -> None:
    """And what it takes, against the plan and the others; each device has its row."""
    found = compared({1: 2.1}, ranks=(0, 1))
    (line,) = slow_lines(found)
    told = "slow: device 1 (process 1) computes 2.10 times as long as planned, the others 1.00"
    assert line.startswith(told)
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
    assert line.startswith("slow: device 0 computes 1.50 times")


@pytest.mark.parametrize(
    ("slowed", "percent"), [({1: 1.2}, 100), ({}, 250), ({0: 1.4, 1: 1.3}, 100), ({1: 1.5}, 50)]
)
def test_what_no_device_is_to_blame_for_names_none(slowed: dict[int, float], percent: int) -> None:
    """Noise, a whole run that is slow, one that is faster than planned."""
    found = compared(slowed, (0, 1), percent)
    assert not slow_lines(found)
    assert to_json(found)["slow_device"] is None
