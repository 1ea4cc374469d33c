"""Lower bounds against brute force: every cut, residency and microbatch of small tasks."""

import time
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from planner import hydra
from planner.bounds import lower_bounds
from planner.builder import duration_us
from planner.choice import Choice
from planner.costs import Links, TaskCosts
from planner.errors import Infeasible
from planner.problem import Effort, Problem
from planner.rounds import program
from profiles import synthetic


@given(
    st.integers(1, 3),
    st.integers(0, 99),
    st.sampled_from([2, 4, 6, 9, 20]),
    st.sampled_from([10**8, 10**9]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([1, 100]),
)
def test_no_plan_beats_a_bound(
    layers: int, seed: int, budget_mib: int, rate: int, states: int, slowness: int
) -> None:
    """The shortest of all plans that fit, tried one by one, is no shorter than any bound."""
    task = synthetic.task(
        "a", layers=layers, seed=seed, steps=7, batch=2, states=states, host_slowness=slowness
    )
    profile = synthetic.profile(
        task, usable_bytes=budget_mib << 20, bytes_per_s=rate, both_bytes_per_s=rate * 5 // 4
    )
    asked = Problem.of(profile, devices=1, device_bytes=None, host_bytes=None)
    links = Links.of(asked.device)
    times = [
        duration_us(program(choice, links), task.steps)
        for choice in every_choice(asked)
        if choice.device_bytes <= asked.device_bytes
    ]
    try:
        baseline = hydra.choose(task, asked.device_bytes)
        times.append(duration_us(hydra.program(baseline, links), task.steps))
    except Infeasible:
        pass
    if times:
        bounds = lower_bounds(asked, Effort(time.monotonic() + 10, 0))
        assert max(bound.us for bound in bounds) <= min(times)


def every_choice(asked: Problem) -> list[Choice]:
    """All microbatches, cuts, sets of residents and numbers of slots of the one task."""
    (task,) = asked.tasks
    count = len(task.layers)
    cuts = [
        (0, *inner, count) for size in range(count) for inner in combinations(range(1, count), size)
    ]
    return [
        Choice(TaskCosts(task, batch.microbatch), cut, frozenset(stay), slots, slots)
        for batch in task.batches
        for cut in cuts
        for size in range(len(cut))
        for stay in combinations(range(len(cut) - 1), size)
        for slots in (1, 2, 3)
    ]
