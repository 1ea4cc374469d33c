"""The planner against every strategy there is, and simulated rounds against the shortest there
are: samples of `tests.benchmarks.truth`."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest

from planner.inputs.problem import Effort
from planner.lowering import DeviceRound
from planner.search.round_bound import round_bound_us
from planner.search.task import Search
from planner.shards import Strategy
from tests.benchmarks.truth import Case, compare
from tests.support.exact import Exact, shortest_us
from tests.support.strategies import PLAIN, WHOLE, describe, shortest, small, some_choice

ALLOWED = 1.01


@pytest.mark.parametrize(("seed", "layers"), [(seed, seed % 4 + 1) for seed in range(100, 104)])
def test_no_choice_is_one_percent_shorter(seed: int, layers: int) -> None:
    """All cuts, modes, blocks and microbatches of a small task, tried one by one."""
    case = small(seed, layers)
    palette = WHOLE if layers <= 3 else PLAIN
    best = shortest(case.task, case.links, case.device_bytes, palette)
    assert best
    search = Search(case.task, case.links, case.device_bytes)
    found = search.best(Effort(time.monotonic() + 60, 0))
    assert found.program.period_us <= ALLOWED * best.period_us, describe(best.strategy)


@pytest.mark.parametrize("seed", [*range(7), 34])
def test_no_simulated_round_is_refuted(seed: int) -> None:
    """Any strategy's round is one of those that the branch and bound looks among."""
    case, rng = small(seed, seed % 5 + 1), random.Random(seed)
    for _ in range(3):
        strategy = some_choice(case, rng)
        device_bytes = DeviceRound(strategy, case.links).device_bytes
        made = DeviceRound(strategy, case.links, device_bytes)
        exact = Exact.of(strategy, case.links, device_bytes)
        state, orders = made.best
        simulated = np.array(state.starts, float)
        simulated[list(orders.moved)] -= made.period_us  # of the round that they serve
        assert exact.holds(made.period_us, simulated)
        found = exact.starts(made.period_us, iter(range(1_000)))
        assert found is not None
        assert exact.holds(made.period_us, found)


def test_the_shortest_round_holds_and_a_shorter_one_is_refuted() -> None:
    """Where copies wait for each other it lies between a bound and the simulated one."""
    case = small(3, 5)
    links = replace(case.links, d2d=None)
    found = Search(case.task, links, case.device_bytes).best(Effort(time.monotonic() + 60, 0))
    assert isinstance(found.strategy, Strategy)
    exact = Exact.of(found.strategy, links, case.device_bytes)
    nodes, period = iter(range(5_000)), found.program.period_us
    least = shortest_us(exact, 0, period, 1_000, nodes)
    assert least
    assert round_bound_us(found.strategy, links) <= least < period
    starts = exact.starts(least, nodes)
    assert starts is not None
    assert exact.holds(least, starts)
    assert not exact.holds(least * 9 // 10, starts)
    assert exact.starts(least - least // 500 - 1, nodes) is None


def test_the_optimum_is_between_the_bound_and_the_plan() -> None:
    """Of a model of three layers, within the part that it is known to."""
    row = compare(Case("llama-13b", "4090", 3, 1, 60, 16))
    assert row.bound_us <= row.least_us <= row.optimum_us <= row.kept_us <= row.plan_us
    assert row.optimum_us - row.least_us <= 2 + row.optimum_us // 250
