"""Steps divided among segments, sums that a task goes on with, and searches for ties and casts."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support import apart, handmade, synthetic
from support.searches import SHORT

from planner import Problem, build, show
from planner.errors import Infeasible, NoPlanFound
from planner.inputs import Effort
from planner.inputs.remaining import after
from planner.search import variants
from planner.search.packed import Packed, StepRun
from planner.search.sums import adds_alike, sums_of
from planner.search.task import Candidate, Search
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from plans.additions import Addition, additions
from plans.runlog import CheckpointRecord, Header, RunLog
from plans.schema import Lengths, Memory, Op, Plan, Program, RoundKind
from plans.timing import Runs
from profiles.schema import Task

TIED = apart.problem(apart.synthetic_task(((0, 4),)), 1 << 24)


def test_time_that_is_up_for_the_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied layers joined are planned, and those apart are late: the first plan counts."""
    real, searched = Search.best, list[bool]()

    def late(search: Search, effort: Effort) -> Candidate:
        searched.append(search.apart)
        if search.apart:
            raise NoPlanFound("late")
        return real(search, effort)

    monkeypatch.setattr(Search, "best", late)
    (kind,) = TIED.kinds
    found = variants.best_alone((kind, kind.tasks[0], TIED.host_bytes), Effort(1e12, 0, SHORT))
    assert isinstance(found, Candidate)
    assert searched == [False, True]


def test_time_that_is_up_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned, and nothing is called infeasible."""

    def late(search: Search, effort: Effort) -> Candidate:
        raise NoPlanFound("late")

    monkeypatch.setattr(Search, "best", late)
    (kind,) = TIED.kinds
    with pytest.raises(NoPlanFound):
        variants.best_alone((kind, kind.tasks[0], TIED.host_bytes), Effort(1e12, 0, SHORT))


OP = Op("a.s0.B0", "0.compute", 0, 1)
ONE = Program("a", (Memory(1, 1),), ("a",), 0, 10, 10, 0, (), (), (OP,), ())
KINDS = structs.replace(ONE, kinds=(RoundKind((256,), 70, 70, (OP,)),))
SAID = Lengths("0" * 64, 1, "0" * 64)

runs = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=4)


@given(runs)
def test_pieces_of_unlike_steps_end_when_their_mean_says(turns: list[tuple[int, int]]) -> None:
    """To half a step, wherever they are cut; all of them together have all steps."""
    packed = Packed(tuple(turns), SAID, Path(), 0)
    each = [70 if kind else 10 for kind, rounds in turns for _ in range(rounds)]
    counts = range(len(each) + 1)
    reached = [one.rounds for count in counts for one in packed.between(KINDS, 0, count)]
    assert reached == sorted(reached)
    assert reached[-1] == len(each)
    for count, steps in enumerate(reached):
        off = sum(each[:steps]) - sum(each) * count / len(each)
        assert abs(off) <= max(each[max(0, steps - 1) : steps + 1]) / 2 + 1


@given(st.lists(runs, min_size=2, max_size=4), st.data())
def test_pieces_of_several_programs_have_each_step_once(
    every: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """In the same kind of round of the same program, wherever they are cut."""
    programs = [structs.replace(KINDS, name=f"a.{n}") for n in range(len(every))]
    parts = tuple(
        StepRun(program, sum(rounds for _, rounds in own), tuple(own))
        for program, own in zip(programs, every, strict=True)
    )
    packed, whole = Packed((), SAID, Path(), 0, parts), sum(one.rounds for one in parts)
    cuts = sorted(data.draw(st.sets(st.integers(1, whole - 1), max_size=3))) if whole > 1 else []
    found = [
        one for a, b in pairwise([0, *cuts, whole]) for one in packed.between(programs[0], a, b)
    ]
    assert steps(found) == steps(parts)


def steps(parts: list[StepRun] | tuple[StepRun, ...]) -> list[tuple[str, int]]:
    """The program and the kind of every step."""

    def kinds(turns: Runs) -> list[int]:
        return [kind for kind, rounds in turns for _ in range(rounds)]

    assert all(len(kinds(one.kinds)) == one.rounds for one in parts)
    return [(one.program.name, kind) for one in parts for kind in kinds(one.kinds)]


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
    assert [sums_of(one.program, one.strategy) for one in (ALONE, SENT)] == [(), REPLICATED]
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
