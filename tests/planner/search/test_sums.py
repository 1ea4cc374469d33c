"""Tasks that go on on several devices: with the order of additions that they had."""

from dataclasses import replace

import pytest
from support import handmade, synthetic

from planner import Problem
from planner.errors import Infeasible
from planner.inputs.remaining import after
from planner.search.sums import adding_alike, sums_of
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from plans.additions import Addition
from plans.runlog import CheckpointRecord, Header, RunLog
from plans.schema import Plan

REPLICATED = (Addition(0, 1, "(0)+(1)"),)


def problem() -> Problem:
    """A task of one layer."""
    made = synthetic.profile(synthetic.task("a", layers=1, batch=2), usable_bytes=24 << 20)
    return Problem.of(made, devices=2, device_bytes=None, host_bytes=None)


def way(plan: Plan) -> Candidate:
    """A strategy with the program of such a plan."""
    costs = TaskCosts(problem().tasks[0], 1)
    return Candidate(Strategy(costs, (0, 1), (Mode(),), 0), plan.programs[:1])


ALONE, SENT = way(handmade.resident()), way(handmade.parallel())


@pytest.mark.parametrize(("before", "stays"), [((), ALONE), (REPLICATED, SENT)])
def test_a_task_that_goes_on_adds_as_before(before: tuple[Addition, ...], stays: Candidate) -> None:
    """One that keeps its microbatches; others add as is best."""
    asked = replace(problem(), kept={"a": 1}, additions={"a": before} if before else {})
    assert [sums_of(one) for one in (ALONE, SENT)] == [(), REPLICATED]
    assert adding_alike(asked, [[ALONE, SENT]]) == [[stays]]
    assert adding_alike(problem(), [[ALONE, SENT]]) == [[ALONE, SENT]]


def test_where_no_plan_adds_as_before_the_order_is_named() -> None:
    """And what would let it change."""
    asked = replace(problem(), kept={"a": 1}, additions={"a": REPLICATED})
    with pytest.raises(Infeasible, match=r"as \(0\)\+\(1\) in layers 0 to 0; no plan"):
        adding_alike(asked, [[ALONE]])


def log(additions: dict[str, tuple[Addition, ...]], step: int) -> RunLog:
    """The log of a run that kept task a after so many steps."""
    header = Header(
        plan_sha256="0" * 64,
        started="2026",
        devices=("cpu0",),
        emulated=True,
        microbatch={"a": 1},
        additions=additions,
    )
    kept = CheckpointRecord("a", step, f"a-{step}.pt", 0)
    return RunLog(header=header, ops=(), steps=(), checkpoints=(kept,), end=None)


def test_the_latest_log_says_how_gradients_were_added() -> None:
    """Unless the microbatches may change anyway."""
    task = synthetic.task("a", layers=1, batch=2, steps=9)
    made = synthetic.profile(task, usable_bytes=24 << 20)
    logs = [log({}, 2), log({"a": REPLICATED}, 4)]
    assert after(made, logs, "x.jsonl", []).additions == {"a": REPLICATED}
    assert after(made, logs[::-1], "x.jsonl", []).additions == {}
    assert after(made, logs, "x.jsonl", [("", 0)]).additions == {}
