"""Why compute waits."""

import pytest
from support import handmade, sketched, synthetic

from planner import Infeasible, Problem, build
from planner.views.stalls import LARGE_GAP_PPM, diagnosis, stalls
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")


def built(seed: int, mib: int, rate: int, slowness: int) -> Plan | None:
    task = synthetic.task("a", layers=4, seed=seed, batch=2, host_slowness=slowness)
    made = synthetic.profile(task, usable_bytes=mib << 20, bytes_per_s=rate)
    asked = Problem.of(made, devices=1, device_bytes=None, host_bytes=None)
    try:
        return build(asked, profile_sha256="0" * 64)
    except Infeasible:
        return None


@pytest.mark.parametrize(
    ("seed", "mib", "rate", "slowness"),
    [(0, 5, 10**8, 1), (0, 12, 10**9, 20), (2, 8, 10**8, 20), (5, 12, 10**8, 1)],
)
def test_every_wait_is_blamed_once(seed: int, mib: int, rate: int, slowness: int) -> None:
    """What compute waits for adds up to the time that it is idle."""
    plan = built(seed, mib, rate, slowness)
    if plan is None:
        return
    (program,) = plan.programs
    ops = [op for op in program.round if op.stream == "0.compute"]
    idle = program.period_us - sum(op.end_us - op.start_us for op in ops)
    found = stalls(program, 0)
    assert sum(stall.us for stall in found) == idle
    assert {stall.resource for stall in found} <= {"h2d", "d2h", "host", "memory"}


@pytest.mark.parametrize(
    "plan",
    [
        handmade.pipeline(),
        handmade.parallel(),
        sketched.plan(),
        sketched.plan(chunks=2, split=True),
        sketched.plan(2, replicas=[3, 1], host=True),
    ],
)
def test_every_wait_of_every_device_is_blamed_once(plan: Plan) -> None:
    """Of several devices each by itself; what other devices compute is a reason too."""
    (program,) = plan.programs
    resources = set()
    for device in range(program.devices):
        ops = [op for op in program.round if op.stream == f"{device}.compute"]
        idle = program.period_us - sum(op.end_us - op.start_us for op in ops)
        found = stalls(program, device)
        assert sum(stall.us for stall in found) == idle
        resources |= {stall.resource for stall in found}
        names = {op.id for op in program.round} | {""}
        assert {stall.most for stall in found} <= names
    assert "others" in resources


def test_a_pipeline_waits_for_its_other_stages_and_for_sends() -> None:
    """Backward waits longest for the last stage's first; and for a send, which is named."""
    plan = sketched.plan()
    told = [line for line in diagnosis(plan) if "in backward" in line]
    assert " for what other devices compute, most for a.s" in told[0]
    sends = [line for line in told if "copies between devices" in line]
    assert sends
    assert ", most for a.dx" in sends[0]
    (program,) = plan.programs
    waits = sum(one.us for d in range(4) for one in stalls(program, d) if one.resource == "p2p")
    assert 0 < waits < 4 * program.period_us - 4 * (8 * 3_000 + 1_500)


def test_a_slow_link_is_named() -> None:
    """Where copies take far longer than compute, the plan says so, and how to look for better."""
    plan = built(0, 6, 10**8, 1)
    assert plan
    assert plan.prediction.gap_ppm >= LARGE_GAP_PPM
    *_, last = lines = diagnosis(plan)
    assert any("for copies to the" in line for line in lines)
    assert last.startswith("  python -m planner sweep")


def test_a_plan_near_its_bound_needs_no_excuse() -> None:
    """With room for everything there is nothing to say."""
    plan = built(0, 64, 10**10, 1)
    assert plan
    if plan.prediction.gap_ppm < LARGE_GAP_PPM:
        assert diagnosis(plan) == []
