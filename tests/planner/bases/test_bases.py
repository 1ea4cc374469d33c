"""Tasks of one frozen base train together: plans are proven, the base comes once for all."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.based import adapters, cut_apart, grouped
from support.edits import offset, with_buffer
from support.searches import SHORT

from planner import build
from planner.bases import Grouping, groupings
from planner.bases.groups import base_of
from planner.errors import Infeasible
from planner.inputs import Problem
from planner.views.show import describe
from plans import prove
from plans.checker import violations
from plans.schema import Plan
from plans.timing import union
from plans.view import base_owners
from profiles.units import show_bytes

pytestmark = pytest.mark.usefixtures("quick")


def plan_of(problem: Problem, grouping: Grouping) -> Plan:
    """The proven plan of this grouping."""
    plan = grouped(problem, grouping)
    prove(plan)
    return plan


def problem(count: int, devices: int = 1, budget: int = 1 << 20, **more: Any) -> Problem:
    """So many tasks of a base, each on a device of so many bytes or several of them."""
    given = {"layers": 4, "param_bytes": 1 << 17, "boundary_bytes": 1 << 14, "steps": 3} | more
    tasks = adapters(count, **given)
    return synthetic.problem(*tasks, usable_bytes=budget, devices=devices, bytes_per_s=200_000_000)


@settings(max_examples=8, deadline=None)
@given(
    count=st.integers(2, 4),
    devices=st.integers(1, 3),
    budget=st.sampled_from([600 << 10, 1 << 20, 4 << 20]),
    norms=st.booleans(),
    batch=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 5),
)
def test_plans_of_all_groupings_are_sound(
    count: int, devices: int, budget: int, norms: bool, batch: int, seed: int
) -> None:
    """However tasks are grouped, on one device or in pipelines and replicas."""
    asked = problem(count, devices, budget, norms=norms, batch=batch, seed=seed)
    ways = groupings(asked)
    assert len(ways[0][0]) == count
    for grouping in ways:
        with suppress(Infeasible):
            plan = grouped(asked, grouping)
            assert [task.name for task in plan.tasks] == [task.name for task in asked.tasks]
            found = violations(plan)  # replicas that no loop adds so are left by `build`
            assert not [line for line in found if "finds gradients added as" not in line]


def test_the_host_store_has_the_base_once() -> None:
    """For all tasks, whether they train together or not."""
    asked = problem(4)
    for grouping in (ways := groupings(asked))[0], ways[-1]:
        plan = plan_of(asked, grouping)
        bases = [b for b in plan.host.buffers if b.name.endswith(".base")]
        held = sum(shard.base_bytes for shard in plan.tasks[0].shards)
        frozen = [layer.param_bytes - layer.grad_bytes for layer in asked.tasks[0].layers]
        if len({tuple(s.end_layer for s in t.shards) for t in plan.tasks}) == 1:
            assert sum(b.bytes for b in bases) == held == sum(frozen)
            assert {task.base for task in plan.tasks} == {"t0"}


def test_show_says_what_the_base_takes() -> None:
    """Of each task's shards, and of the host store."""
    plan = plan_of(problem(2), [["t0", "t1"]])
    told, size = describe(plan), show_bytes(sum(s.base_bytes for s in plan.tasks[0].shards))
    assert f", bases {size}, " in told
    assert " on the base of t0, " in told


def test_a_base_comes_once_for_the_microbatches_of_all_tasks() -> None:
    """As often in a round of four tasks as in one of a single task, and it never goes back."""
    plan = plan_of(asked := problem(4, budget=700 << 10), [["t0", "t1", "t2", "t3"]])
    (program,) = plan.programs
    loads = [op.id for op in program.round if op.name.item == "base"]
    shards = len(plan.tasks[0].shards)
    assert loads
    assert len(loads) <= 2 * shards
    assert not [op.id for op in program.ops if op.name.item == "base" and op.name.kind == "S"]
    assert len(asked.tasks) == 4


def test_a_base_that_the_last_backward_has_stays_for_the_first_forward() -> None:
    """Where loads take most of the time the first shard's base is loaded once in a round."""
    asked = problem(2, budget=660 << 10, forward_us=100, layers=6)
    plan = plan_of(asked, [["t0", "t1"]])
    loads = [op.name.number for op in plan.programs[0].round if op.name.item == "base"]
    first = min(loads)
    assert loads.count(first) == 1
    assert len(loads) > len(set(loads))


def test_tasks_that_wait_for_the_link_train_together() -> None:
    """Where loads take most of the time the plan ends sooner by a third than that of strangers."""
    asked = problem(4, budget=700 << 10, forward_us=100, layers=6)
    strangers = [structs.replace(task, base=None) for task in asked.tasks]
    apart = build(asked.alike(tasks=tuple(strangers)), profile_sha256="0" * 64)
    plan = build(asked, profile_sha256="0" * 64)
    assert plan.programs[0].tasks == ("t0", "t1", "t2", "t3")
    assert 3 * plan.prediction.makespan_us < 2 * apart.prediction.makespan_us


def test_the_host_store_has_a_base_once_that_is_cut_in_two_ways() -> None:
    """It lies layer by layer, and each task's shards are parts of it."""
    asked = problem(2, budget=700 << 10, layers=6)
    with cut_apart("t1"):
        plan = plan_of(asked, [["t0"], ["t1"]])
    assert [task.base for task in plan.tasks] == ["t0", "t1"]
    bases = [b for b in plan.host.buffers if b.name.endswith(".base")]
    extents = [(b.offset, b.offset + b.bytes) for b in bases]
    assert sum(end - start for start, end in union(extents)) == sum(base_of(asked.tasks[0]).sizes)
    assert set(base_owners(plan).values()) == {"t0"}


@pytest.mark.parametrize("count", [1, 0])
def test_a_base_that_is_cut_in_two_ways_lies_alike(count: int) -> None:
    """A plan is refused where the last shards, or all, begin elsewhere than in the other cut."""
    with cut_apart("t1"):
        plan = plan_of(problem(2, budget=700 << 10, layers=6), [["t0"], ["t1"]])
    names = [b.name for b in plan.host.buffers if b.name.startswith("t1.") and "base" in b.name]
    for name in names[-count:]:
        plan = with_buffer(plan, name, offset=offset(plan, name) + 512)
    assert [line for line in violations(plan) if "inside t" in line and ".base" in line]


@pytest.mark.parametrize("change", [{"base": "0" * 64}, {"base": None}])
def test_tasks_of_other_bases_are_strangers(change: dict[str, Any]) -> None:
    asked = problem(2)
    other = structs.replace(asked.tasks[1], **change)
    assert groupings(asked.alike(tasks=(asked.tasks[0], other))) == []


APART = {
    "steps 3, not the 4 of t1": {"steps": 4},
    "precision fp32, not the bf16 of t1": {"precision": "bf16"},
    "other tied layers than those of t1": {"ties": ((0, 1),)},
}


@pytest.mark.parametrize("why", APART)
def test_tasks_that_differ_in_more_than_what_they_train_train_apart(why: str) -> None:
    """Each in a group of its own, and the plan says why; their base lies in the host store once."""
    asked = problem(2)
    asked = asked.alike(tasks=(asked.tasks[0], structs.replace(asked.tasks[1], **APART[why])))
    assert groupings(asked) == [[["t0"], ["t1"]]]
    told_of(
        asked, f"t0: apart from others on the base of t0, which lies in host memory once; {why}"
    )


def test_the_plan_says_what_larger_groups_would_be_worth() -> None:
    """Tasks that compute all the time end sooner on devices of their own."""
    asked = problem(2, devices=2, budget=4 << 20, forward_us=2000)
    told_of(asked, "t0: apart from others on the base of t0", "; 2 together would end in ")


def test_strangers_of_one_base_are_told_as_well() -> None:
    """With the reason, and how often the base lies in the host store."""
    asked = replace(problem(2), objective="completion")
    told_of(asked, "times, 459.8 KiB each; --objective completion plans each by itself")


def told_of(asked: Problem, *said: str) -> None:
    """The words of `build` have these on a line."""
    lines = describe(build(asked, profile_sha256="0" * 64, limits=SHORT)).splitlines()
    assert [line for line in lines if all(one in line for one in said)], "\n".join(lines)
