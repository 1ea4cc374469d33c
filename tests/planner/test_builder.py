"""Plans of random problems: proven, bounded, reproducible; and what happens when there is none."""

import random
from dataclasses import replace
from functools import cache
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.gangs import of_steps
from support.searches import effort

from planner import Infeasible, Problem, build
from planner.bounds.task import TaskBound
from planner.exploring import candidate_widths
from planner.inputs import Layout
from planner.inputs.limits import Limits
from planner.inputs.problem import DeviceGroup, Effort, Policy, Want
from planner.search.task import Candidate
from plans.order import waiting
from plans.schema import Plan
from plans.timing import device_times
from profiles.errors import FormatError
from profiles.schema import Disk, Evaluation, Rate, Task

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64


def problem(seed: int) -> Problem:
    """A few random chains on one to three devices of random size and link; of every second task
    updates wait for norms."""
    rng = random.Random(seed)
    tasks = [
        synthetic.task(
            f"t{i}",
            layers=(layers := rng.randint(1, 7)),
            ties=rng.choice([(), ((layers - 2, layers - 1),)]) if layers > 1 else (),
            seed=rng.randint(0, 99),
            steps=rng.choice([1, 2, 9, 10**5]),
            batch=rng.choice([1, 2, 4]),
            param_bytes=rng.choice([1_000, 1 << 18, 1 << 20]),
            boundary_bytes=rng.choice([256, 1 << 14, 1 << 18]),
            forward_us=rng.choice([50, 1_000, 5_000]),
            draws=rng.choice([1, 1, None]),
            states=rng.choice([0, 1, 2]),
            host_slowness=rng.choice([1, 1, 100]),
            norms=(seed + i) % 2 == 1,
        )
        for i in range(rng.randint(1, 3))
    ]
    rate = rng.choice([10**8, 10**9, 10**10])
    usable = rng.choice([2, 4, 8, 16, 64]) << 20
    both = rng.choice([None, rate // 2, 2 * rate])
    return synthetic.problem(
        *tasks,
        usable_bytes=usable,
        bytes_per_s=rate,
        both_bytes_per_s=both,
        devices=rng.randint(1, 3),
    )


@cache
def built(seed: int, policy: Policy) -> Plan | None:
    """The plan of a random problem, if there is one."""
    try:
        return build(problem(seed), profile_sha256=HASH, policy=policy)
    except Infeasible:
        return None


SEEDS = range(4)  # few, because plans take their time, and the tests share them


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_every_plan_is_proven_and_not_better_than_its_bounds(seed: int, policy: Policy) -> None:
    """Whatever the problem, `build` does not end in a plan that it cannot prove: a violation or a
    bound above the makespan would raise InvalidPlan."""
    plan = built(seed, policy)
    if plan:
        assert {task.name for task in plan.tasks} == {task.name for task in problem(seed).tasks}


@pytest.mark.parametrize("seed", SEEDS)
def test_gantry_is_never_slower_than_the_baseline(seed: int) -> None:
    """On every problem that both can plan, the predicted makespan is at most hydra's."""
    ours, theirs = built(seed, "gantry"), built(seed, "hydra")
    if theirs:
        assert ours
        assert ours.prediction.makespan_us <= theirs.prediction.makespan_us


@settings(max_examples=3)
@given(st.integers(0, 10**6))
def test_the_smallest_budget_named_is_the_smallest(seed: int) -> None:
    """With the budget that the message names a plan exists; with one byte less none does."""
    asked = problem(seed).alike(device_bytes=1)
    asked = asked.alike(tasks=asked.tasks[:1])
    with pytest.raises(Infeasible) as caught:
        build(asked, profile_sha256=HASH)
    smallest = caught.value.smallest
    assert f" {smallest} (" in str(caught.value)
    with pytest.raises(Infeasible):
        build(asked.alike(device_bytes=smallest - 1), profile_sha256=HASH)
    plan = build(asked.alike(device_bytes=smallest), profile_sha256=HASH)
    assert max(device.peak_bytes for device in device_times(plan)) <= smallest


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(FormatError, match="there is no policy lrtf; choose gantry or hydra"):
        build(problem(0), profile_sha256=HASH, policy=cast("Policy", "lrtf"))


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_the_budget_named_does_for_all_tasks(policy: Policy) -> None:
    sizes = [1 << 12, 1 << 14, 1 << 13]
    tasks = [synthetic.task(f"t{n}", layers=2, param_bytes=size) for n, size in enumerate(sizes)]
    asked = synthetic.problem(*tasks, usable_bytes=1)
    with pytest.raises(Infeasible, match="t1") as caught:
        build(asked, profile_sha256=HASH, policy=policy)
    assert build(
        asked.alike(device_bytes=caught.value.smallest), profile_sha256=HASH, policy=policy
    )


def test_a_layer_of_unknown_randomness_keeps_the_batch_whole() -> None:
    """Without constant draws there is one microbatch, whatever the memory."""
    task = synthetic.task("a", layers=4, batch=8, draws=None)
    asked = synthetic.problem(task, usable_bytes=64 << 20)
    assert build(asked, profile_sha256=HASH).tasks[0].microbatches == 1


def uneven(**changes: object) -> Problem:
    """Three tasks for three devices, of which one is as long as six others."""
    steps = {"a": 600, "b": 100, "c": 100}
    tasks = [
        structs.replace(synthetic.task(name, layers=3, seed=1, batch=8, steps=count), **changes)
        for name, count in steps.items()
    ]
    return synthetic.problem(*tasks, usable_bytes=64 << 20, devices=3)


@cache
def shared(*layout: int) -> Plan:
    """Their plan, in a layout or in any."""
    shape = Layout((layout,)) if layout else None
    return build(replace(uneven(), layout=shape), profile_sha256=HASH)


def widths(plan: Plan) -> dict[str, set[int]]:
    """On how many devices each program runs."""
    found: dict[str, set[int]] = {}
    for segment in plan.segments:
        found.setdefault(segment.program, set()).add(len(segment.devices))
    return found


def test_the_longest_task_is_trained_on_several_devices() -> None:
    """Which ends the whole sooner than in layout 1, as a proven plan with a bound of all programs
    that there are."""
    plan, alone = shared(), shared(1)
    told = plan.prediction
    assert widths(plan)["a"] <= {2, 3}
    assert told.lower_bound_us <= told.makespan_us
    assert 0 < told.configuration_us <= told.makespan_us
    assert widths(alone) == {"a": {1}, "b": {1}, "c": {1}}
    assert told.makespan_us < 0.75 * alone.prediction.makespan_us


def test_a_task_on_several_devices_is_evaluated_on_them() -> None:
    plan = build(uneven(evaluation=Evaluation(every=200, batches=3)), profile_sha256=HASH)
    assert widths(plan)["a"] <= {2, 3}
    ends = {s.program: s.devices for s in plan.segments}
    assert ends["a.eval"] == ends["a"]
    assert sum(segment.program == "a.eval" for segment in plan.segments) == 3


def test_several_devices_keep_a_deadline() -> None:
    wants = {"a": Want(deadline_us=shared(1).prediction.makespan_us * 2 // 3)}
    build(replace(uneven(), wants=wants), profile_sha256=HASH)


def test_tasks_on_several_devices_wait_on_the_disk() -> None:
    disk = Disk(1 << 40, Rate(10**9, 0), Rate(10**9, 0))
    short = replace(uneven(), host_bytes=shared().host.bytes * 3 // 4, disk=disk)
    plan = build(short, profile_sha256=HASH)
    assert waiting(plan)
    assert widths(plan)["a"] <= {2, 3}


def nothing(
    asked: tuple[DeviceGroup, Task, int], devices: int, effort: Effort, **wishes: object
) -> Candidate:
    """A search for programs on several devices that finds none."""
    raise Infeasible("none", resource="other")


@pytest.mark.parametrize("seed", SEEDS[1:])
def test_gangs_are_taken_only_where_they_help(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of random problems are never longer than without."""
    plan = built(seed, "gantry")
    monkeypatch.setattr("planner.builder.best_pipeline", nothing)
    if plan:
        alone = build(problem(seed), profile_sha256=HASH)
        assert plan.prediction.makespan_us <= alone.prediction.makespan_us * 1.0001


def test_a_limit_that_ends_the_search_leaves_a_plan() -> None:
    task = synthetic.task(
        "a",
        layers=32,
        seed=1,
        steps=100_000,
        batch=8,
        param_bytes=1 << 30,
        boundary_bytes=1 << 26,
        forward_us=200_000,
    )
    asked = synthetic.problem(task, usable_bytes=60 << 30, bytes_per_s=25 * 10**9)
    plan = build(asked, profile_sha256=HASH, seconds=1, limits=Limits())
    assert plan.solver.status == "time-limit"


def longest_first(devices: int, steps: list[int], **wishes: object) -> list[tuple[str, int]]:
    """The tasks that are wanted on several devices, and on how many, where a step takes 1 ms."""
    asked = replace(of_steps(devices, steps), **wishes)  # type: ignore[arg-type]
    bounds = [{(0, 1): TaskBound({"compute": 1_000})} for _ in steps]
    return [(one.task, one.devices) for one in candidate_widths(asked, bounds, effort())]


def test_only_tasks_that_hold_up_the_rest_are_wanted_on_several_devices() -> None:
    """One of four, as long as the others together; a second device would do, and none where all
    share out evenly already."""
    assert longest_first(2, [90, 30, 30, 30]) == []
    assert longest_first(4, [900, 100, 100, 100]) == [("t0", 2), ("t0", 3), ("t0", 4)]
    assert longest_first(8, [900]) == [("t0", 3), ("t0", 4), ("t0", 8)]
    assert longest_first(8, [100] * 8) == []
    assert longest_first(2, [120, 90]) == [("t0", 2), ("t1", 2)]  # one after the other on both


def test_every_task_is_wanted_where_other_ends_count_than_the_last() -> None:
    every = [("t0", 2), ("t0", 3), ("t1", 2), ("t1", 3)]
    assert longest_first(3, [5, 5, 5], objective="completion")[:4] == every
    due = {"t1": Want(deadline_us=10)}
    assert longest_first(3, [5, 5, 5], wants=due) == [("t1", 2), ("t1", 3)]
