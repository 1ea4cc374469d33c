"""Lower bounds against brute force: every way to train small tasks; and how bounds follow from
what there is."""

import random
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import piped, synthetic
from support.searches import effort
from support.strategies import PLAIN, WHOLE, Palette, Small, faster, shortest, small, some_choice

from planner.bounds.named import named_bounds
from planner.bounds.rows import PlanSubset, Terms
from planner.bounds.task import phase_us, task_bound, task_bounds
from planner.bounds.windows import Phases, Solution
from planner.errors import Infeasible
from planner.lowering import PipelineRound
from planner.lowering.round import DeviceRound
from planner.rounds import hydra
from planner.search.round_bound import round_bound_bytes, round_bound_us
from planner.search.task import Search
from planner.shards.costs import TaskCosts, microbatch_costs
from planner.shards.cuts import cut_points
from planner.shards.modes import Mode
from profiles.schema import Link, Rate


@settings(max_examples=20)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([None, ("h2d", 30), ("d2h", 10)]),
)
@example(0, 3, False, 0, None)  # a shard may have a neighbour on both sides
@example(385, 2, True, 1, None)  # updates begin before the backward below them
@example(569, 4, True, 3, None)  # layers that are never updated need no time on the host
@example(749, 3, True, 2, None)  # the gradient at work leaves later, and takes its room once
@example(865355, 3, True, 2, None)  # parameters of a block come while layers below go forward
def test_no_choice_beats_a_bound(
    seed: int, layers: int, norms: bool, still: int, slow: tuple[str, int] | None
) -> None:
    """Of all strategies that fit, repeated, none takes less than any bound says: where either
    direction of the link is short, updates wait for norms, and layers are frozen."""
    case = small(seed, layers, norms=norms)
    links = [slower(x, slow[1]) if slow and x.kind == slow[0] else x for x in case.device.links]
    device = structs.replace(case.device, links=tuple(links))
    still = min(still, layers - 1)
    frozen = (
        structs.replace(layer, grad_bytes=0, state_bytes=0, norm=None, norm_peak_bytes=0)
        for layer in case.task.layers[:still]
    )
    task = structs.replace(case.task, layers=(*frozen, *case.task.layers[still:]))
    whole = layers <= 2 or (layers == 3 and not norms and not seed)
    _none_below(replace(case, device=device, task=task), WHOLE if whole else PLAIN)


def slower(link: Link, percent: int) -> Link:
    def less(rate: Rate) -> Rate:
        return Rate(max(1, rate.bytes_per_s * percent // 100), rate.latency_us)

    return structs.replace(link, alone=less(link.alone), both=less(link.both))


def _none_below(case: Small, palette: Palette) -> None:
    each = task_bounds(case.problem, effort())
    bounds = named_bounds(case.problem, each, phased=True)
    best = max(bounds, key=lambda bound: bound.us)
    below = -(-best.us // case.task.steps)
    beaten = shortest(case.task, case.links, case.device_bytes, palette, below)
    assert beaten is None, (best, beaten.period_us, beaten.strategy.modes)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_the_baseline_beats_no_bound(seed: int, layers: int) -> None:
    """The bound over phases holds for it where it sweeps but once."""
    case = small(seed, layers)
    try:
        strategy = hydra.choose(case.task, case.device_bytes)
    except Infeasible:
        return
    period = hydra.program(strategy, case.links).period_us
    bound = task_bound(case.task, effort(), case.links, case.device_bytes)
    assert bound.us("compute") <= period
    if strategy.costs.microbatches == 1:
        assert bound.us("phase") <= period


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(100, 300))
def test_more_memory_or_a_faster_link_lowers_the_bound(
    seed: int, layers: int, percent: int
) -> None:
    """More of either, in percent of what there was, never raises the optimum of the load program
    over phases, by more than the solver's tolerance."""
    case = small(seed, layers)
    costs = TaskCosts(case.task, 1)
    before = phase_us([costs], case.links, case.device_bytes, effort())
    assert before is not None
    for links, room in (
        (case.links, case.device_bytes * percent // 100),
        (faster(case.links, "h2d", percent), case.device_bytes),
        (faster(case.links, "d2h", percent), case.device_bytes),
    ):
        after = phase_us([costs], links, room, effort())
        assert after is not None
        assert after <= before + 2 + before // 100_000


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 5))
def test_several_devices_have_what_all_of_them_have(seed: int, layers: int, devices: int) -> None:
    """Bounds are no more than on fewer devices, each of which computes its part at least, and a
    microbatch goes up and down one layer after the other."""
    case = small(seed, layers)
    links, room = case.links, case.device_bytes
    one, few, more = (
        task_bound(case.task, effort(), links, room, devices=k) for k in (1, devices, devices + 1)
    )
    assert -(-one.us("compute") // devices) <= few.us("compute") <= one.us("compute")
    assert few.us("fill-and-drain") >= more.us("fill-and-drain")
    trained = next(n for n, layer in enumerate(case.task.layers) if layer.grad_bytes)
    ways = [
        sum(layer.costs[size].backward.median_us for layer in case.task.layers[trained:])
        for size in range(len(case.task.batches))
    ]
    assert few.us("compute") >= min(ways)
    assert few.us("phase") == few.us("fill-and-drain") >= few.us("compute")


def test_with_room_for_all_the_bound_is_reached() -> None:
    """Where everything stays on the device, the bound leaves next to nothing to gain."""
    case = small(0, 3)
    room = 100 * case.device_bytes
    best = shortest(case.task, case.links, room, PLAIN)
    assert best
    bound = task_bound(case.task, effort(), case.links, room).period_us
    assert 0.95 * best.period_us < bound <= best.period_us


def test_what_the_host_updates_goes_through_it_between_two_forwards() -> None:
    """Where the host has to update all layers, the bound has room for the first one's way."""
    case = small(0, 3)
    costs, links = microbatch_costs(case.task)[0], case.links
    items = tuple(pairwise(cut_points(case.task)))
    terms = Terms(costs, items, links.best_h2d, links.best_d2h, 1 << 40, links)
    fixed = (Mode("kept", activations="saved"),) * 2 + (Mode("kept"),)
    part = PlanSubset(2, 2, 0, 1 << 40, fixed)
    found = Phases(terms, 12).solve(part, terms, 60.0, 0, near=False)
    layer = case.task.layers[0]
    way_us = layer.update_host.median_us + layer.grad_bytes * 1e6 / links.best_d2h
    assert found
    assert found.period_us + 2 >= costs.least_us + way_us + layer.param_bytes * 1e6 / links.best_h2d


def test_state_that_has_no_room_to_wait_comes_while_its_layer_is_at_work() -> None:
    """Where all of it takes as long to come as a round computes, little of it comes before."""
    case = small(0, 3)
    costs = microbatch_costs(case.task)[0]
    items = tuple(pairwise(cut_points(case.task)))
    rate = sum(layer.state_bytes for layer in case.task.layers) * 10**6 // costs.least_us
    mode = Mode("resident", "device-streamed")
    saved = replace(mode, activations="saved")
    part = PlanSubset(2, 2, 0, 1 << 40, (saved, saved, mode))

    def least_us(room: int) -> int | None:
        terms = Terms(costs, items, rate, rate, room, case.links)
        found = Phases(terms, 12).solve(part, terms, 60.0, 0, near=False)
        return found and found.period_us

    room = bisect_left(range(1 << 30), 1, key=lambda size: least_us(size) is not None)
    wide, tight = least_us(1 << 30), least_us(room)
    assert wide
    assert tight
    assert wide < 1.05 * costs.least_us
    assert tight > 1.1 * costs.least_us


def test_a_microbatch_that_does_not_fit_does_not_lower_the_bound() -> None:
    """The bound over phases is the least of the sizes that a plan may have."""
    case = small(2, 3)
    each = [
        phase_us([costs], case.links, case.device_bytes, effort())
        for costs in microbatch_costs(case.task)
    ]
    assert None in each  # the whole batch at once takes too much
    bound = task_bound(case.task, effort(), case.links, case.device_bytes)
    assert bound.us("phase") == min(us for us in each if us) > 0


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_no_round_on_several_devices_beats_a_bound(seed: int) -> None:
    """Whatever runs where and in which order, in any modes, on devices just large enough."""
    made = PipelineRound(piped.drawn(Random(seed)), piped.LINKS)
    strategy = made.strategy
    assume(strategy.devices > 1)
    one = task_bound(
        strategy.costs.task, effort(), piped.LINKS, made.device_bytes, devices=strategy.devices
    )
    assert one.us("compute") <= one.us("fill-and-drain") <= made.period_us


@pytest.mark.parametrize(("batch", "devices"), [(4, 2), (4, 4), (2, 5)])
def test_fill_and_drain_is_reached_without_weights_to_send(batch: int, devices: int) -> None:
    """Each device takes microbatches of its own from end to end: of equal layers without gradients,
    but one, no size of microbatches that each device gets one of takes longer than the bound."""
    task = synthetic.task(
        "a", layers=3, batch=batch, heterogeneous=False, param_bytes=16, boundary_bytes=16
    )
    still = (structs.replace(layer, grad_bytes=0, state_bytes=0) for layer in task.layers[1:])
    task = structs.replace(task, layers=(task.layers[0], *still))
    periods = []
    for cost in task.batches:
        each = [tuple(range(min(devices, batch // cost.microbatch)))]
        one = piped.piped(task, (0, 3), each, "gpipe", microbatch=cost.microbatch)
        periods.append(PipelineRound(one, piped.LINKS).period_us)
    bound = task_bound(task, effort(), piped.LINKS, 1 << 40, devices=devices).us("fill-and-drain")
    assert bound <= min(periods) <= bound * 1.3


def terms(seed: int, *, plan: bool) -> Terms:
    case = small(seed, 5)
    starts = Search(case.task, case.links, case.device_bytes).starts
    items = tuple(pairwise(cut_points(case.task)))
    cuts = [0, *(end for _, end in items)]
    return replace(starts.program(starts.sizes[0], cuts, False), plan=plan)


def parts(asked: Terms) -> list[PlanSubset]:
    last, most = len(asked.items) - 1, asked.costs.backward_transient(0, len(asked.costs.layers))
    known = (*(Mode() for _ in range(last)), None)
    return [
        PlanSubset(0, last, 0, most),
        PlanSubset(last, last, 0, most, known),
        PlanSubset(0, last // 2, most // 2, most),
        PlanSubset(last, last, 0, most // 2),
        PlanSubset(0, last, 0, most),
    ]


def solved(program: Phases, asked: Terms, part: PlanSubset) -> Solution | None:
    return program.solve(part, asked, 60.0, 0, near=False)


@pytest.mark.parametrize("plan", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_one_program_says_of_every_part_what_a_new_one_says(seed: int, plan: bool) -> None:
    """Nothing is left of the parts and of the memory that it was solved for before."""
    asked = terms(seed, plan=plan)
    kept = Phases(asked, 4)
    found = [solved(kept, asked, part) for part in parts(asked)]
    assert any(found)
    assert found == [solved(Phases(asked, 4), asked, part) for part in parts(asked)]
    less = replace(asked, room_bytes=asked.room_bytes // 2, host_bytes=1 << 16)
    (first, *_) = parts(asked)
    assert solved(kept, less, first) == solved(Phases(less, 4), less, first)
    assert solved(kept, asked, first) == found[0]


@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_no_round_is_shorter_than_its_streams_have_work_or_takes_less_than_lives_in_it(
    seed: int, norms: bool, lumped: bool, urgent: bool
) -> None:
    """What keeps the search from laying a strategy out is true of those that it lays out."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 6), norms=norms)
    strategy = replace(some_choice(case, rng), lumped=lumped, urgent=urgent)
    assert (
        round_bound_us(strategy, case.links) <= DeviceRound(strategy, case.links, 1 << 40).period_us
    )
    assert round_bound_bytes(strategy) <= DeviceRound(strategy, case.links).device_bytes


@pytest.mark.parametrize("norms", [False, True])
def test_of_whole_or_streamed_models_it_is_known_what_they_take(norms: bool) -> None:
    """Strategies that do not fit are seldom laid out."""
    case = small(3, 5, norms=norms)
    starts = Search(case.task, case.links, case.device_bytes).starts
    costs = starts.sizes[0]
    finest, *_ = starts.ladder(costs)
    for strategy in (starts.whole(costs), *starts.streamed(costs, finest)):
        takes = DeviceRound(strategy, case.links).device_bytes
        assert round_bound_bytes(strategy) >= 0.98 * takes
