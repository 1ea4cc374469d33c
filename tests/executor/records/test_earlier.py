"""A run that begins again goes on from its checkpoints, and in its log."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support import handmade
from support.chains import tasks_for
from support.fit import fit
from support.presses import press
from support.same import assert_same

from executor import run
from executor.driver import Options
from executor.errors import InterruptedRun
from executor.records import earlier
from plans import runlog
from plans.runlog import RunLog

SHA, OWN = "0" * 64, "here 7 1"


def _ops(log: RunLog) -> Counter[tuple[int, str, int]]:
    return Counter((op.segment, op.op, op.round) for op in log.ops)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("on", "step"), [("a", 1), ("b", 2), ("a", 3)])
def test_it_goes_on_in_the_middle_of_segments(on: str, step: int, tmp_path: Path) -> None:
    """Each round and each step is in the log once, and trained once."""
    tasks = tasks_for(handmade.gang())
    plan = fit(handmade.gang(), tasks)
    whole, log, kept = tmp_path / "whole.jsonl", tmp_path / "x.jsonl", tmp_path / "kept"
    run(plan, tasks, Options(log=whole))
    options = Options(log=log, checkpoints=kept, plan_sha256=SHA, agents=(OWN,))
    with pytest.raises(InterruptedRun):
        run(plan, [press(on, step, task) for task in tasks], options)
    found = earlier.find(log, plan, SHA, [OWN])
    assert found
    assert found.made or sum(found.reached.done.values()) > 0
    result = run(plan, tasks, replace(options, earlier=found))
    assert_same(plan, tasks, result)
    one, again = runlog.load(whole), runlog.load(log)
    assert _ops(one) == _ops(again)
    losses = [{(s.task, s.step): s.loss for s in known.steps} for known in (one, again)]
    assert losses[0] == losses[1]
    assert len(again.steps) == len(one.steps)
    assert again.restarts[0].error.startswith("interrupted by SIGINT")
    assert [end.status for end in (one.end, again.end) if end] == ["ok", "ok"]
    last = {f"{task.name}-{task.steps}.pt" for task in plan.tasks}
    assert {path.name for path in kept.iterdir()} == last


def test_another_log_is_no_earlier_start(tmp_path: Path) -> None:
    """One of another plan, one of other agents, or none."""
    tasks = tasks_for(handmade.relay())
    plan, log = fit(handmade.relay(), tasks), tmp_path / "x.jsonl"
    assert earlier.find(log, plan, SHA, [OWN]) is None
    run(plan, tasks, Options(log=log, plan_sha256=SHA, agents=(OWN, "there 8 2")))
    assert earlier.find(log, plan, SHA, [OWN])
    assert earlier.find(log, plan, "1" * 64, [OWN]) is None
    assert earlier.find(log, plan, SHA, ["here 7 2"]) is None


def test_times_of_day_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is known by its agents, of which later starts know all: times go on by the clock that
    nobody sets, and from another machine's not before those in the log."""
    tasks = tasks_for(handmade.relay())
    plan, log = fit(handmade.relay(), tasks), tmp_path / "x.jsonl"
    begun = time.perf_counter()
    run(plan, tasks, Options(log=log, plan_sha256=SHA, agents=(OWN, "there 8 2")))
    ended = time.perf_counter()
    monkeypatch.setattr(earlier.time, "time", lambda: 1.0)
    here = earlier.find(log, plan, SHA, ["here 9 3", "there 8 2"])
    there = earlier.find(log, plan, SHA, ["there 8 2", "elsewhere 9 3"])
    assert here
    assert there
    assert here.header.agents == (OWN, "there 8 2", "here 9 3")
    assert begun <= here.origin <= ended
    latest = max(op.end_us for op in runlog.load(log).ops)
    assert there.origin <= time.perf_counter() - latest / 1e6
