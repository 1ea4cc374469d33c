"""The cost model against the memory meter: no plan runs out of what it reserved."""

from itertools import combinations

import pytest

pytest.importorskip("torch")

from executor import workload
from executor.profiler import Options, profile
from executor.replay import run
from planner import rounds
from planner.builder import Answer, assemble, duration_us
from planner.choice import Choice
from planner.costs import Links, TaskCosts
from planner.problem import Problem
from plans.schema import Bound, Segment
from profiles.schema import Emulation, Profile

REF = "support.uneven:tasks"
FAST = Emulation(h2d_bytes_per_s=10**10, d2h_bytes_per_s=10**10, latency_us=0)


@pytest.fixture(scope="module")
def measured() -> Profile:
    return profile(REF, Options(device_bytes=1 << 24, emulation=FAST, devices=1, samples=1))


@pytest.mark.parametrize("microbatch", [4, 32])
@pytest.mark.parametrize("cut", [c for n in range(5) for c in combinations(range(1, 5), n)])
def test_every_cut_runs_in_what_it_reserves(
    measured: Profile, cut: tuple[int, ...], microbatch: int
) -> None:
    """Whatever layers a shard joins, its ops take no more than predicted: the executor measures
    them and would refuse."""
    asked = Problem.of(measured, devices=1, device_bytes=None, host_bytes=None)
    costs = TaskCosts(asked.tasks[0], microbatch)
    resident = frozenset({0}) if len(cut) % 2 else frozenset[int]()
    choice = Choice(costs, (0, *cut, 5), resident, 2, 2)
    timed = rounds.program(choice, Links.of(asked.device))
    segment = Segment("u", (0,), 1, 0, duration_us(timed, 1))
    plan = assemble(
        asked,
        [Answer(choice, timed, 1, True)],
        [segment],
        (Bound("none", 0),),
        "0" * 64,
        "gantry",
        0,
    )
    tasks, _ = workload.load(REF)
    (peak,) = run(plan, tasks).peak_bytes
    assert peak <= choice.device_bytes
    assert peak > choice.device_bytes * 2 // 3  # and no wild guess either
