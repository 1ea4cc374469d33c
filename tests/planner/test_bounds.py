"""Lower bounds against brute force: every way to train small tasks; and how bounds follow from
what there is."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.choices import PLAIN, WHOLE, Small, shortest, small

from planner import hydra
from planner.bounds import lower_bounds, phase_us, task_bound
from planner.costs import Links, TaskCosts, sizes
from planner.errors import Infeasible
from planner.problem import Effort
from profiles.schema import Rate

EFFORT_SECONDS = 30.0


def effort() -> Effort:
    return Effort(time.monotonic() + EFFORT_SECONDS, 0)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_no_choice_beats_a_bound(seed: int, layers: int) -> None:
    """The shortest round of all choices that fit, repeated, takes no less than any bound says."""
    case = small(seed, layers)
    best = shortest(
        case.task, case.links, case.device_bytes, WHOLE if layers <= 2 else PLAIN
    )
    if best:
        bounds = lower_bounds(case.problem, effort(), phased=True)
        assert max(bounds, key=lambda b: b.us).us <= case.task.steps * best.period_us, bounds


@settings(max_examples=6)
@given(st.integers(0, 10**6))
def test_no_choice_of_three_layers_beats_a_bound(seed: int) -> None:
    """With every mode, where shards have a neighbour on both sides."""
    case = small(seed, 3)
    best = shortest(case.task, case.links, case.device_bytes)
    if best:
        bounds = lower_bounds(case.problem, effort(), phased=True)
        assert max(bounds, key=lambda b: b.us).us <= case.task.steps * best.period_us, bounds


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_the_baseline_beats_no_bound(seed: int, layers: int) -> None:
    """The bound over phases holds for it where it sweeps but once."""
    case = small(seed, layers)
    try:
        choice = hydra.choose(case.task, case.device_bytes)
    except Infeasible:
        return
    period = hydra.program(choice, case.links).period_us
    bound = task_bound(case.task, case.links, case.device_bytes, effort())
    assert max(bound.compute_us, bound.link_us, bound.load_us) <= period
    if choice.costs.microbatches == 1:
        assert bound.phase_us <= period


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(100, 300), st.integers(100, 300))
def test_more_of_anything_lowers_every_bound(
    seed: int, layers: int, memory: int, rate: int
) -> None:
    """More memory or a faster link, in percent of what there was, raises no bound, but by what the
    solver's tolerance may."""
    case = small(seed, layers)
    more = case.device_bytes * memory // 100
    bases = task_bound(case.task, case.links, case.device_bytes, effort())
    for links, room in (
        (case.links, more),
        (faster(case.links, "h2d", rate), case.device_bytes),
        (faster(case.links, "d2h", rate), case.device_bytes),
    ):
        bound = task_bound(case.task, links, room, effort())
        for name in ("compute_us", "link_us", "load_us", "phase_us"):
            before, after = getattr(bases, name), getattr(bound, name)
            assert after <= before + 2 + before // 100_000, name


def faster(links: Links, way: str, percent: int) -> Links:
    """Links of which one is faster, alone and beside the other."""
    rates = {
        name: Rate(getattr(links, name).bytes_per_s * percent // 100, links.h2d.latency_us)
        for name in (way, f"{way}_both")
    }
    return replace(links, **rates)


@pytest.mark.parametrize("layers", [1, 3])
def test_with_room_for_all_the_bound_is_reached(layers: int) -> None:
    """Where everything stays on the device, no bound leaves anything to gain but latencies."""
    case = small(0, layers)
    room = 100 * case.device_bytes
    best = shortest(case.task, case.links, room, PLAIN)
    assert best
    bound = task_bound(case.task, case.links, room, effort()).period_us
    assert bound > best.period_us * 0.9
