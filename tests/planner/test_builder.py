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
from support.searches import QUICK

from planner import Infeasible, Problem, build
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


SEEDS = range(7)  # few, because plans take their time, and the tests share them


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


@settings(max_examples=5)
@given(st.integers(0, 10**6))
def test_the_smallest_budget_named_is_the_smallest(seed: int) -> None:
    """With the budget that the message names a plan exists; with one byte less none does."""
    asked = problem(seed).alike(device_bytes=1)
    asked = asked.alike(tasks=asked.tasks[:1])
    with pytest.raises(Infeasible) as caught:
        build(asked, profile_sha256=HASH)
    smallest = int(str(caught.value).rsplit(" ", 1)[1])
    with pytest.raises(Infeasible):
        build(asked.alike(device_bytes=smallest - 1), profile_sha256=HASH)
    plan = build(asked.alike(device_bytes=smallest), profile_sha256=HASH)
    assert max(device.peak_bytes for device in device_times(plan)) <= smallest


def test_a_policy_that_there_is_not_is_refused() -> None:
    """From Python no parser has looked at it."""
    with pytest.raises(FormatError, match="there is no policy lrtf; choose gantry or hydra"):
        build(problem(0), profile_sha256=HASH, policy=cast("Policy", "lrtf"))


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_the_budget_named_does_for_all_tasks(policy: Policy) -> None:
    """Not only for the first that does not fit."""
    sizes = [1 << 12, 1 << 14, 1 << 13]
    tasks = [synthetic.task(f"t{n}", layers=2, param_bytes=size) for n, size in enumerate(sizes)]
    asked = synthetic.problem(*tasks, usable_bytes=1)
    with pytest.raises(Infeasible, match="t1") as caught:
        build(asked, profile_sha256=HASH, policy=policy)
    assert build(
        asked.alike(device_bytes=caught.value.smallest), profile_sha256=HASH, policy=policy
    )


def test_the_host_memory_named_does() -> None:
    """Also where the full search would update on the host, which takes room for gradients there,
    what the least search updates on the device."""
    tasks = [
        synthetic.task(
            name,
            layers=2,
            seed=3,
            steps=30,
            batch=1,
            param_bytes=1 << 14,
            boundary_bytes=1 << 10,
            forward_us=100,
        )
        for name in ("t0", "t1")
    ]
    asked = synthetic.problem(*tasks, usable_bytes=140 << 10, bytes_per_s=2 * 10**8, host_bytes=1)
    some = Limits(search_ops=3_000)
    with pytest.raises(Infeasible, match="--host-memory that would do") as caught:
        build(asked, profile_sha256=HASH, limits=some)
    smallest = caught.value.smallest
    plan = build(replace(asked, host_bytes=smallest), profile_sha256=HASH, limits=some)
    assert plan.host.bytes <= smallest


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


def widths(plan: Plan) -> dict[str, set[int]]:
    """On how many devices each program runs."""
    found: dict[str, set[int]] = {}
    for segment in plan.segments:
        found.setdefault(segment.program, set()).add(len(segment.devices))
    return found


def test_the_longest_task_is_trained_on_several_devices() -> None:
    """Which ends the whole sooner than in layout 1, as a proven plan with a bound of all programs
    that there are."""
    plan = build(uneven(), profile_sha256=HASH)
    told = plan.prediction
    assert widths(plan)["a"] <= {2, 3}
    assert told.lower_bound_us <= told.makespan_us
    assert 0 < told.configuration_us <= told.makespan_us
    alone = build(replace(uneven(), layout=Layout(((1,),))), profile_sha256=HASH)
    assert widths(alone) == {"a": {1}, "b": {1}, "c": {1}}
    assert told.makespan_us < 0.75 * alone.prediction.makespan_us


def test_a_task_on_several_devices_is_evaluated_on_them() -> None:
    """In between, as often as asked."""
    plan = build(uneven(evaluation=Evaluation(every=200, batches=3)), profile_sha256=HASH)
    assert widths(plan)["a"] <= {2, 3}
    ends = {s.program: s.devices for s in plan.segments}
    assert ends["a.eval"] == ends["a"]
    assert sum(segment.program == "a.eval" for segment in plan.segments) == 3


def test_several_devices_keep_a_deadline() -> None:
    """That no plan of one device each could."""
    alone = build(replace(uneven(), layout=Layout(((1,),))), profile_sha256=HASH).prediction
    wants = {"a": Want(deadline_us=alone.makespan_us * 2 // 3)}
    build(replace(uneven(), wants=wants), profile_sha256=HASH)


def test_tasks_on_several_devices_wait_on_the_disk() -> None:
    """Where the host has room for some of them."""
    asked, disk = uneven(), Disk(1 << 40, Rate(10**9, 0), Rate(10**9, 0))
    roomy = build(asked, profile_sha256=HASH)
    short = replace(asked, host_bytes=roomy.host.bytes * 3 // 4, disk=disk)
    plan = build(short, profile_sha256=HASH)
    assert waiting(plan)
    assert widths(plan)["a"] <= {2, 3}


def nothing(
    asked: tuple[DeviceGroup, Task, int], devices: int, effort: Effort, **wishes: object
) -> Candidate:
    """A search for programs on several devices that finds none."""
    raise Infeasible("none", resource="other")


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_gangs_are_taken_only_where_they_help(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of random problems are never longer than without."""
    plan = built(seed, "gantry")
    monkeypatch.setattr("planner.builder.best_pipeline", nothing)
    if plan:
        alone = build(problem(seed), profile_sha256=HASH)
        assert plan.prediction.makespan_us <= alone.prediction.makespan_us * 1.0001


def test_a_limit_that_ends_the_search_leaves_a_plan() -> None:
    """What was found by then, and the plan says so."""
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


def test_limits_are_handed_down_to_every_search() -> None:
    """A search that may simulate less tries fewer candidates."""
    task = synthetic.task("a", layers=6, seed=1, batch=4, param_bytes=1 << 20)
    asked = synthetic.problem(task, usable_bytes=8 << 20)
    few, more = (
        build(asked, profile_sha256=HASH, limits=replace(QUICK, search_ops=ops))
        for ops in (50, 4_000)
    )
    assert few.solver.candidates < more.solver.candidates


def test_more_shapes_than_six_share_the_effort() -> None:
    """All of them together have what six have; none has nothing."""
    limits = Limits(search_ops=600, search_guides=4, bound_divisions=6)
    assert limits.among(6) == limits
    half = limits.among(12)
    assert (half.search_ops, half.search_guides, half.bound_divisions) == (300, 2, 3)
    none = limits.among(10**6)
    assert (none.search_ops, none.search_guides, none.bound_divisions) == (1, 1, 1)
