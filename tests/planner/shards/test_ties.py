"""Tied layers, planned in one shard or in several."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import apart

from planner.bounds.task import task_bound
from planner.builder import build
from planner.errors import Infeasible
from planner.estimate.profile import Spec, estimate
from planner.inputs.problem import Effort, Problem
from planner.lowering.round import DeviceRound
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode, holdings
from planner.shards.shard_cost import Links
from planner.shards.ties import Group, separable_ties, untied
from profiles.codec import align
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("quick")


def tied_gpt() -> Profile:
    """An estimated GPT-2 whose head uses the embedding's table."""
    made = estimate(Spec("gpt2", "4090", batch=2, sequence=64, microbatches=(1, 2)))
    (task,) = made.tasks
    first, *body, last = task.layers
    table = align(50257 * 768 * 2)
    state = last.state_bytes * table // last.param_bytes
    sizes = {"param_bytes": table, "grad_bytes": table, "state_bytes": state}
    head = structs.replace(last, **{f: getattr(last, f) - size for f, size in sizes.items()})
    layers, ties = (first, *body, head), ((0, len(task.layers) - 1),)
    task = structs.replace(task, layers=layers, ties=ties, tie_bytes=(table,))
    return structs.replace(made, tasks=(task,))


def test_a_model_with_a_tied_head_is_cut() -> None:
    """GPT-2 in less than its parameters and gradients take: the table crosses shards, where without
    measured ties there would be one shard and no plan."""
    made = tied_gpt()
    (task,) = made.tasks
    size = sum(x.param_bytes + x.grad_bytes for x in task.layers) * 9 // 10
    asked = Problem.of(made, devices=1, device_bytes=size, host_bytes=None)
    plan = build(asked, profile_sha256="0" * 64, seconds=20)
    assert len(plan.tasks[0].shards) > 1
    assert (plan.tasks[0].tie_bytes,) == task.tie_bytes
    joined = structs.replace(made, tasks=(structs.replace(task, tie_bytes=()),))
    with pytest.raises(Infeasible):
        build(
            Problem.of(joined, devices=1, device_bytes=size, host_bytes=None),
            profile_sha256="0" * 64,
        )


def test_with_room_for_everything_ties_are_joined() -> None:
    """What fits as a whole and computes all the time is trained as a whole."""
    task = apart.synthetic_task(((0, 5),), batch=2, forward_us=1_000_000)
    plan = build(apart.problem(task), profile_sha256="0" * 64)
    assert (len(plan.tasks[0].shards), plan.tasks[0].tie_bytes) == (1, 0)


def test_the_smallest_budget_does() -> None:
    """Infeasible names a budget for which there is a plan, and below which there is none."""
    task = apart.synthetic_task(((0, 5),), batch=2, param_bytes=1 << 16)
    with pytest.raises(Infeasible) as short:
        build(apart.problem(task, 1000), profile_sha256="0" * 64)
    least = short.value.smallest
    build(apart.problem(task, least), profile_sha256="0" * 64, seconds=20)
    with pytest.raises(Infeasible):
        build(apart.problem(task, least - 256), profile_sha256="0" * 64)


def test_the_group_with_most_between_may_be_apart() -> None:
    """Of measured groups the one that would join most layers; others stay joined."""
    task = apart.synthetic_task(((0, 5), (2, 3)))
    assert separable_ties(task) == Group((0, 5), task.tie_bytes[0])
    assert untied(task).ties == ((2, 3),)
    first = structs.replace(task, tie_bytes=(0, task.tie_bytes[1]))
    assert separable_ties(first) == Group((2, 3), task.tie_bytes[1])
    assert separable_ties(structs.replace(task, tie_bytes=())) is None


def test_owner_and_holders() -> None:
    """The shard of the first layer owns; one with the whole group has nothing to share."""
    group = Group((1, 3, 4), 256)
    parts = {(a, b): group.part(a, b) for a, b in combinations(range(7), 2)}
    assert {span for span, part in parts.items() if part == "owner"} == {
        *((a, b) for a in (0, 1) for b in (2, 3, 4))
    }
    assert parts[1, 5] == parts[0, 6] == parts[0, 1] == parts[2, 3] == parts[5, 6] == ""
    assert parts[3, 4] == parts[2, 6] == "holder"


def test_the_owner_never_streams() -> None:
    """Its parameters are used from its first forward to its last backward."""
    costs = TaskCosts(apart.synthetic_task(((0, 5),)), 4, apart=True)
    assert all(params != "streamed" for params, _ in holdings(costs.shard(0, 2)))
    assert any(params == "streamed" for params, _ in holdings(costs.shard(2, 6)))


@settings(max_examples=15)
@given(
    st.sets(st.integers(1, 5), min_size=1),
    st.sampled_from([Mode(), Mode("resident", "device", "saved"), Mode("kept", "host", "offload")]),
    st.sampled_from([1, 2]),
    st.integers(0, 5),
    st.sampled_from([((0, 5),), ((0, 2, 5),), ((1, 4), (2, 3))]),
)
def test_any_choice_is_sound_and_above_the_bound(
    cuts: set[int], mode: Mode, microbatch: int, block: int, ties: tuple[tuple[int, ...], ...]
) -> None:
    """Plans of any cuts and modes pass the checker, and no bound says that they cannot be."""
    if len(ties) > 1:
        cuts = (cuts - {3}) or {2}  # the other group stays joined
    task = apart.synthetic_task(ties, batch=2)
    made = apart.strategy(task, mode, microbatch, (0, *sorted(cuts), 6), block)
    asked = apart.problem(task)
    apart.planned(asked, made)
    laid_out = DeviceRound(made, Links.of(asked.device))
    bound = task_bound(task, Effort(1e18, 0), Links.of(asked.device), laid_out.device_bytes)
    assert bound.period_us <= laid_out.period_us
    quick = replace(made, lumped=True)
    assert DeviceRound(quick, Links.of(asked.device)).device_bytes == laid_out.device_bytes
