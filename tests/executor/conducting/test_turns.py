"""Earliest starts: a run keeps them, without hurry, and without taking the wait for a stall. Who
waits for segments that are skipped."""

from pathlib import Path

import pytest
from msgspec import structs
from support import handmade
from support.chains import failing_soon, tasks_for
from support.fit import fit
from support.parts import streamed_part
from support.retime import foretold
from support.same import assert_same

import plans
from executor import run
from executor.conducting.turns import Turns
from executor.driver import Options
from executor.errors import RunError
from executor.workload.task import Task
from plans import runlog
from plans.checker.check import violations
from plans.schema import Plan


def waiting(start_us: int, name: str = "fleet") -> tuple[Plan, list[Task]]:
    """A sound plan whose second task begins so late, and its tasks."""
    tasks = tasks_for(handmade.PLANS[name]())
    plan = fit(handmade.PLANS[name](), tasks)
    first, last = plan.segments
    begin = max(start_us, last.start_us)
    late = structs.replace(last, start_us=begin, end_us=begin + last.end_us - last.start_us)
    owners = [structs.replace(t, start_us=start_us if t.name == "b" else 0) for t in plan.tasks]
    plan = foretold(structs.replace(plan, tasks=tuple(owners), segments=(first, late)))
    plans.prove(plan)
    return plan, tasks


@pytest.mark.parametrize("name", ["fleet", "relay"])
def test_no_segment_begins_before_its_task_may(name: str, tmp_path: Path) -> None:
    """The other task begins before it; with one device or with two, the bits are the same, and to
    wait longer than for any op is no stall."""
    plan, tasks = waiting(600_000, name)
    result = run(plan, tasks, Options(folder=tmp_path, stall_seconds=0.5))
    assert_same(plan, tasks, result)
    ops = runlog.load(tmp_path).ops
    begins = [min(op.start_us for op in ops if op.segment == index) for index in (0, 1)]
    assert begins[0] < begins[1] >= 600_000


@pytest.mark.timeout(60)
def test_waiting_can_be_ended() -> None:
    """Long before the task may begin."""
    plan, tasks = waiting(600_000_000)
    with pytest.raises(RunError, match="enough"):
        run(plan, [failing_soon(tasks[0]), *tasks[1:]])


def test_a_plan_that_begins_a_task_too_soon_is_refused() -> None:
    """With the task, and both times."""
    plan, _ = waiting(700_000)
    owners = tuple(structs.replace(t, start_us=t.start_us and 700_001) for t in plan.tasks)
    assert violations(structs.replace(plan, tasks=owners)) == [
        "segment 1: starts at 700000 µs but task 'b' may not begin before 700001 µs"
    ]


def test_a_skipped_segment_has_ended_once_it_would_have_been_ready() -> None:
    """Who waits for it waits for what it waited for, and for no time."""
    parts = [streamed_part(name, shards=2) for name in "abc"]
    programs = [handmade.program(part.task.name, 1, [part]) for part in parts]
    runs = [("a", (0,), 2), ("a", (1,), 1), ("a", (1,), 1), ("b", (1,), 4), ("c", (0,), 4)]
    turns = Turns(handmade.assemble(parts, programs, runs))
    turns.begin(0)
    turns.skip("a")
    assert (turns.ready(), turns.segments("a")) == ([], [])
    turns.end(0)
    assert turns.ready() == [3, 4]
    turns.skip("b")
    assert turns.ready() == [4]


def test_a_segment_that_is_done_does_not_let_later_ones_pass() -> None:
    """A run that went on by another plan may have done the middle one of a device first: the last
    one still waits for the one before it."""
    plan = handmade.PLANS["relay"]()
    first, last = plan.segments
    done = structs.replace(last, rounds=0)
    turns = Turns(structs.replace(plan, segments=(first, done, last)))
    assert turns.ready() == [0]
    turns.begin(0)
    assert turns.ready() == []
    turns.end(0)
    assert turns.ready() == [2]
