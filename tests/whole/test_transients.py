"""The cost model against the memory meter: no plan runs out of what it reserved."""

from itertools import combinations

import pytest

pytest.importorskip("torch")


from executor import run
from executor.profiling.profiler import Options, profile
from executor.workload import load
from planner.builder import assemble
from planner.inputs.problem import Problem
from planner.rounds.round import Round
from planner.search.local_search import resettled
from planner.search.task import Candidate
from planner.shards.costs import Links, TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from plans import prove
from plans.metrics import duration_us
from plans.prediction import Bound
from plans.schema import Segment
from profiles.schema import Emulation, Profile

pytestmark = pytest.mark.usefixtures("warm")

REF = "support.uneven:tasks"
FAST = Emulation(h2d_bytes_per_s=10**10, d2h_bytes_per_s=10**10, latency_us=0)


@pytest.fixture(scope="module")
def measured() -> Profile:
    return profile(REF, Options(device_bytes=1 << 24, emulation=FAST, devices=1, samples=1))


MODES = (
    Mode("streamed", "host", "recompute"),
    Mode("resident", "device", "saved"),
    Mode("kept", "host", "offload"),
    Mode("streamed", "device-streamed", "offload"),
)


@pytest.mark.parametrize("microbatch", [4, 32])
@pytest.mark.parametrize("cut", [c for n in range(5) for c in combinations(range(1, 5), n)])
def test_every_cut_runs_in_what_it_reserves(
    measured: Profile, cut: tuple[int, ...], microbatch: int
) -> None:
    """Whatever layers a shard joins, and whatever happens to its activations, its ops take no more
    than predicted, and the slab is used to its end: the executor measures both."""
    asked = Problem.of(measured, devices=1, device_bytes=None, host_bytes=None)
    costs = TaskCosts(asked.tasks[0], microbatch)
    cuts = (0, *cut, 5)
    mode = MODES[(sum(cut) + len(cut)) % len(MODES)]
    plain = Strategy(costs, cuts, (mode,) * (len(cuts) - 1), len(cut) // 2, lumped=False)
    strategy = resettled(plain)
    made = Round(strategy, Links.of(asked.device), 0)
    timed = made.program()
    segment = Segment("u", (0,), 1, 0, duration_us(timed, 1))
    plan = assemble(
        asked,
        [Candidate(strategy, (timed,))],
        [segment],
        (Bound("none", 0),),
        "gantry",
        0,
    )
    prove(plan)
    tasks, _ = load(REF)
    done = run(plan, tasks)
    needs = made.slab.bytes + strategy.reserve_bytes
    assert done.slab_bytes == (made.slab.bytes,)
    assert done.peak_bytes[0] <= needs
    assert done.peak_bytes[0] > needs * 2 // 3  # and no wild guess either
