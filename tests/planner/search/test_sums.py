"""Tasks that go on on several devices: with the order of additions that they had."""

from dataclasses import replace

import pytest
from msgspec import structs
from support import handmade, synthetic

from planner import Problem, build, show
from planner.errors import Infeasible
from planner.inputs.remaining import after
from planner.search.sums import adds_alike, sums_of
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from plans.additions import Addition, additions
from plans.runlog import CheckpointRecord, Header, RunLog
from plans.schema import Plan
from profiles.schema import Task

REPLICATED = (Addition(0, 1, "(0)+(1)"),)


def problem() -> Problem:
    """A task of one layer."""
    return synthetic.problem(
        synthetic.task("a", layers=1, batch=2), usable_bytes=24 << 20, devices=2
    )


def way(plan: Plan) -> Candidate:
    """A strategy with the program of such a plan."""
    costs = TaskCosts(problem().tasks[0], 1)
    return Candidate(Strategy(costs, (0, 1), (Mode(),), 0), plan.programs[:1])


ALONE, SENT = way(handmade.resident()), way(handmade.parallel())


@pytest.mark.parametrize(("before", "other"), [((), SENT), (REPLICATED, ALONE)])
def test_a_task_that_goes_on_adds_as_before(before: tuple[Addition, ...], other: Candidate) -> None:
    """One that keeps its microbatches; others add as is best."""
    asked = replace(problem(), microbatch={"a": 1}, additions={"a": before})
    assert [sums_of(one) for one in (ALONE, SENT)] == [(), REPLICATED]
    for one in (ALONE, SENT):
        adds_alike(problem(), one)
        if one is not other:
            adds_alike(asked, one)
    with pytest.raises(Infeasible, match="no plan that was found on"):
        adds_alike(asked, other)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("devices", "used"), [(3, 2), (4, 4), (8, 8)])
def test_the_rest_of_a_run_is_on_as_many_devices_as_add_alike(devices: int, used: int) -> None:
    """All of them but those that its replicas do not go into, which the plan tells of."""
    task = synthetic.task("a", layers=8, batch=4, steps=9, forward_us=90_000, param_bytes=64)
    asked = synthetic.problem(only_microbatch(task), usable_bytes=24 << 20, devices=devices)
    sums = {"a": (Addition(0, 8, "(0+2)+(1+3)"),)}
    plan = build(replace(asked, microbatch={"a": 1}, additions=sums), profile_sha256="0" * 64)
    assert plan.programs[0].devices == used
    assert additions(plan) == sums
    assert ("left idle: 2 cpu2" in show(plan)) == (devices == 3)


def only_microbatch(task: Task) -> Task:
    """The task as if one sample had been the only size."""
    layers = (structs.replace(layer, costs=layer.costs[:1]) for layer in task.layers)
    return structs.replace(task, batches=task.batches[:1], layers=tuple(layers))


def log(additions: dict[str, tuple[Addition, ...]], step: int) -> RunLog:
    """The log of a run that kept task a after so many steps."""
    header = Header(
        plan_sha256="0" * 64,
        started="2026",
        devices=("cpu0",),
        microbatch={"a": 1},
        additions=additions,
    )
    kept = CheckpointRecord("a", step, 0)
    return RunLog(header=header, ops=(), steps=(), checkpoints=(kept,), end=None)


def test_the_latest_log_says_how_gradients_were_added() -> None:
    """Unless the microbatches may change anyway."""
    task = synthetic.task("a", layers=1, batch=2, steps=9)
    made = synthetic.profile(task, usable_bytes=24 << 20)
    logs = [log({}, 2), log({"a": REPLICATED}, 4)]
    assert after(made, logs, "x.jsonl", []).additions == {"a": REPLICATED}
    assert after(made, logs[::-1], "x.jsonl", []).additions == {"a": ()}
    assert after(made, logs, "x.jsonl", [("", 0)]).additions == {}
