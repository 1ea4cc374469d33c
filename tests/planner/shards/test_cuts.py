"""Cuts against brute force."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import apart, synthetic

from planner.bounds.task import task_bound
from planner.builder import build
from planner.errors import Infeasible
from planner.estimate.profile import Spec, estimate
from planner.inputs.problem import Effort, Problem
from planner.lowering.round import DeviceRound
from planner.shards.costs import TaskCosts
from planner.shards.cuts import cheapest, cut_points
from planner.shards.modes import Mode
from planner.shards.shard_cost import Links
from profiles.codec import align
from profiles.schema import Profile, Task, Time

pytestmark = pytest.mark.usefixtures("quick")


def price(costs: TaskCosts, cuts: tuple[int, ...], shard_us: int) -> int:
    """What a cut costs: forwards of all shards but the last, and a price per shard."""
    forward = sum(costs.shard(a, b).forward_us for a, b in list(pairwise(cuts))[:-1])
    return costs.microbatches * forward + shard_us * (len(cuts) - 1)


@given(st.integers(1, 7), st.integers(0, 99), st.integers(1, 6), st.integers(1, 6))
def test_no_other_cut_within_the_caps_is_cheaper(
    layers: int, seed: int, param_mib: int, transient_kib: int
) -> None:
    """All subsets of cut points, tried one by one, contain nothing cheaper."""
    costs = TaskCosts(synthetic.task("a", layers=layers, seed=seed), 4)
    params, transients = param_mib << 20, transient_kib << 18
    found = cheapest(costs, list(range(layers + 1)), params, transients, 50)
    allowed = []
    for count in range(layers):
        for inner in combinations(range(1, layers), count):
            cuts = (0, *inner, layers)
            shards = [costs.shard(a, b) for a, b in pairwise(cuts)]
            if all(
                s.param_bytes <= params and s.backward_transient_bytes <= transients for s in shards
            ):
                allowed.append(price(costs, cuts, 50))
    assert (found is None) == (not allowed)
    if found:
        assert price(costs, found, 50) == min(allowed)


def test_parts_of_a_backward_are_those_of_the_layers() -> None:
    """A shard has times of both parts, and what is left between, where all its layers have. In the
    first part no graph is freed: what layers behind the one at work saved stays, with gradients.
    """
    task = synthetic.task("a", layers=3)
    layers = [task.layers[0]]
    for k, layer in enumerate(task.layers[1:], 1):
        times = {name: Time(us, us, us, 1) for name, us in (("input", 3 * k), ("weight", 5 * k))}
        costs = tuple(
            structs.replace(
                cost,
                backward_input=times["input"],
                backward_weight=times["weight"],
                left_bytes=256 * k,
                kept_grad_bytes=10 * k,
                input_peak_bytes=10**k,
                saved_bytes=100 * k,
                out_bytes=1,
            )
            for cost in layer.costs
        )
        layers.append(structs.replace(layer, costs=costs))
    costs = TaskCosts(structs.replace(task, layers=tuple(layers)), 4)
    found = [costs.shard(*cut) for cut in ((0, 3), (0, 1), (1, 2), (1, 3))]
    assert [
        (s.input_us, s.weight_us, s.left_bytes, s.kept_grad_bytes, s.input_transient_bytes)
        for s in found
    ] == [
        (None, None, None, 30, 0),
        (None, None, None, 0, 0),
        (3, 5, 256, 10, 10),
        (9, 15, 768, 30, max(10 + 1 + 200 + 20, 100 + 100)),
    ]


def test_tied_layers_are_never_separated() -> None:
    """A tie between the first and the third layer leaves only the cuts outside it."""
    task = synthetic.task("a", layers=5)
    tied = Task(**{f: getattr(task, f) for f in task.__struct_fields__} | {"ties": ((0, 2),)})
    assert cut_points(tied) == [0, 3, 4, 5]


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


@settings(max_examples=8)
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


def test_boundaries_that_spill_are_timed_in_two_ops() -> None:
    """With all microbatches in one op they would begin to leave when the last one is made."""
    task = apart.synthetic_task((), batch=4)
    plain = apart.strategy(task, Mode(), 1, (0, 2, 4, 6), 2)
    quick = replace(plain, lumped=True)
    spilled = replace(quick, modes=(Mode(), Mode(spilled=True), quick.modes[-1]))
    assert (plain.parts, quick.parts, spilled.parts) == (4, 1, 2)
