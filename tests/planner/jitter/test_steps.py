"""Steps of many runs at once, against the one simulator run by run."""

from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import handmade

from planner.jitter import Spread, jitter
from planner.jitter.steps import _ROUNDS, _linked, _Runs
from planner.rounds.timeline import once
from plans.schema import Memory, Op, Program

STREAMS = ["0.compute", "1.compute", "0.h2d", "host.0"]


def _program(*ops: Op, period: int = 0) -> Program:
    end = max(op.end_us for op in ops)
    memory = (Memory(0, 0),) * 2
    return Program("p", memory, ("a",), 0, period or end, end, 0, (), (), ops, ())


def _by_hand(program: Program, us: list[list[int]]) -> int:
    """The last step when round r's op i takes us[r][i]: all rounds as ops that run once, behind a
    planned one each of whose ops just ends when it was to."""
    ops, count = program.round, len(program.round)
    place = {op.id: at for at, op in enumerate(ops)}
    times = [op.end_us for op in ops]  # the planned round: no op waits there
    needs: list[list[int]] = [[] for _ in ops]
    queues = [[at] for at in range(count)]
    streams: dict[str, list[int]] = {}
    for number, took in enumerate(us, 1):
        for at, op in enumerate(ops):
            own = number * count + at
            before = [e.removesuffix("@-1") for e in op.after]
            shifts = [(number - e.endswith("@-1")) * count for e in op.after]
            needs.append([place[e] + shift for e, shift in zip(before, shifts, strict=True)])
            last = [other for other in range(count) if ops[other].stream == op.stream][-1]
            needs[-1] += [last] * (number == 1)
            streams.setdefault(op.stream, []).append(own)
            times.append(took[at])
    starts = once(times, [*queues, *streams.values()], needs)
    ends = [start + took for start, took in zip(starts, times, strict=True)]
    last, before = (max(ends[r * count : (r + 1) * count]) for r in (len(us), len(us) - 1))
    return last - before


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random ops on four streams, some waiting for others of their round or the one before."""
    ops = []
    for at in range(draw(st.integers(1, 7))):
        after = draw(st.lists(st.integers(0, at - 1), max_size=2, unique=True)) if at else []
        late = draw(st.lists(st.integers(0, at), max_size=1))
        edges = [f"a.s0.F{k}" for k in after] + [f"a.s0.F{k}@-1" for k in late]
        start, us = draw(st.integers(0, 30)), draw(st.integers(0, 20))
        stream = draw(st.sampled_from(STREAMS))
        ops.append(Op(f"a.s0.F{at}", stream, start, start + us, tuple(edges)))
    return _program(*ops)


@settings(deadline=None, max_examples=60)
@given(programs(), st.integers(0, 9))
def test_each_run_is_what_the_simulator_says(program: Program, seed: int) -> None:
    """Steps of runs side by side are those of each run's ops, started as soon as possible."""
    wide = [Spread(5 + at, 9 - at) for at in range(len(program.round))]
    runs = _Runs(_linked(program), wide, 3, np.random.default_rng(seed))
    drawn: dict[int, list[np.ndarray]] = {at: [] for at in range(len(wide))}
    draw = runs._drawn

    def noted(at: int) -> np.ndarray:
        drawn[at].append(draw(at))
        return drawn[at][-1]

    runs._drawn = noted  # type: ignore[method-assign, assignment]
    steps = runs.steps()
    for run in range(3):
        us = [
            [
                op.end_us - op.start_us + int(drawn[at][r][run])
                for at, op in enumerate(program.round)
            ]
            for r in range(_ROUNDS)
        ]
        assert min(map(min, us)) >= 0
        assert steps[run] == _by_hand(program, us)


@pytest.mark.parametrize("name", ["resident", "streamed", "pipeline", "parallel", "mixed"])
def test_without_spread_every_step_is_the_period(name: str) -> None:
    (program,) = handmade.PLANS[name]().programs
    found = jitter(program, {}, samples=5)
    assert set(found.steps) == {program.period_us}
    assert all(late == 0 for _, late in found.path.values())


def test_quantiles_are_those_of_the_spread() -> None:
    """One op in a round: a tenth of the steps is below its 10th percentile, and so on."""
    program = _program(Op("a.s0.B0", "0.compute", 0, 10_000))
    found = jitter(program, {"a.s0.B0": Spread(300, 900)}, samples=20_000)
    assert found.quantile(10) == pytest.approx(9_700, abs=25)
    assert found.quantile(50) == pytest.approx(10_000, abs=25)
    assert found.quantile(90) == pytest.approx(10_900, abs=50)
    sigma = 900 / NormalDist().inv_cdf(0.9)
    assert found.quantile(95) == pytest.approx(10_000 + sigma * NormalDist().inv_cdf(0.95), abs=70)


def test_the_same_seed_gives_the_same_steps() -> None:
    (program,) = handmade.pipeline().programs
    wide = {op.id: Spread(4, 8) for op in program.round}
    again = [jitter(program, wide, samples=50, seed=seed).steps for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_the_step_waits_for_the_longer_of_two_devices() -> None:
    """Only the ops of the device that computes longest are on the path, and they alone are late."""
    ops = [
        Op("a.s0.B0", "0.compute", 0, 1_000),
        Op("a.s0.B1", "0.compute", 1_000, 2_000),
        Op("a.s1.B0", "1.compute", 0, 500),
    ]
    found = jitter(_program(*ops), {op.id: Spread(50, 50) for op in ops}, samples=200)
    assert set(found.path) == {"a.s0.B0", "a.s0.B1"}
    assert all(runs == 200 for runs, _ in found.path.values())
    late = sum(late for _, late in found.path.values())
    assert late == sum(found.steps) - 200 * found.planned_us


def test_more_spread_makes_longer_steps_where_devices_wait_for_each_other() -> None:
    """The mean grows although the mean of each op does not: joins wait for the latest."""
    (program,) = handmade.pipeline().programs
    means = [
        jitter(program, {op.id: Spread(wide, wide) for op in program.round}).mean_us
        for wide in (0, 5, 15)
    ]
    assert all(a < b for a, b in pairwise(means))
