"""Devices that compute slower than others are named; what is only mispredicted is not."""

import pytest
from support.handmade import PLANS

from executor.conducting.paces import Paces
from plans.runlog import Line, OpRecord, StepRecord

PLAN = PLANS["fleet"]()


def rounds(times: dict[int, float], steps: int = 20) -> list[Line]:
    """The records of so many steps of both segments, whose ops take so many times as long as
    planned on each device."""
    lines: list[Line] = [StepRecord("a", step, 1.0, 0) for step in range(steps)]
    for index, segment in enumerate(PLAN.segments):
        for op in PLAN.program(segment.program).ops:
            us = int(op.us * times[segment.devices[op.queue.device]])
            lines += [OpRecord(index, op.id, n, 0, us, False) for n in range(steps)]
    return lines


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handmade plan has µs for its ops."""
    monkeypatch.setattr("executor.conducting.paces._LEAST_US", 1)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_device_is_named_with_an_op(slow: int) -> None:
    paces = Paces(PLAN)
    paces.add(rounds({slow: 3.0, 1 - slow: 1.0}))
    told = paces.slow()
    name = PLAN.devices[slow].name
    assert told.startswith(f"{name} computes 3.00 times as long as planned, the others 1.00 times")
    assert paces.slow() == ""  # once


def test_devices_that_are_all_late_are_not_named() -> None:
    paces = Paces(PLAN)
    paces.add(rounds({0: 3.0, 1: 3.3}))
    assert paces.slow() == ""


def test_a_few_steps_say_nothing() -> None:
    paces = Paces(PLAN)
    paces.add(rounds({0: 1.0, 1: 3.0}, steps=19))
    assert paces.slow() == ""
    paces.add([StepRecord("a", 19, 1.0, 0)])
    assert paces.slow()


def test_what_other_processes_computed_counts() -> None:
    own, other = Paces(PLAN), Paces(PLAN)
    lines = rounds({0: 1.0, 1: 2.0})
    for paces, device in ((own, 0), (other, 1)):
        kept = [
            line
            for line in lines
            if not isinstance(line, OpRecord) or PLAN.segments[line.segment].devices == (device,)
        ]
        paces.add(kept)
    own.merge(other.taken())
    assert "2.00 times" in own.slow()
