"""How fast planning and proving are: pytest tests/benchmarks --benchmark-enable -q."""

from typing import Any

from support.handmade import large

from planner import Problem, build
from plans import violations
from plans.schema import Plan
from tests.support import synthetic

HASH = "0" * 64


def plan_of(layers: int, budget_mib: int, batch: int = 4) -> Plan:
    """A plan of one synthetic task on one device."""
    task = synthetic.task("a", layers=layers, steps=100, batch=batch)
    profile = synthetic.profile(task, usable_bytes=budget_mib << 20)
    asked = Problem.of(profile, devices=1, device_bytes=None, host_bytes=None)
    return build(asked, profile_sha256=HASH)


def test_build_200_layers(benchmark: Any) -> None:
    """One device, 200 heterogeneous layers, a fifth of them fit; target: under 5 s."""
    plan = benchmark.pedantic(plan_of, args=(200, 60), rounds=3)
    assert plan.solver.status == "complete"


def test_prove_a_round_of_10000_ops(benchmark: Any) -> None:
    """The checker on a program of two devices and at least 10,000 ops; target: under 5 s."""
    plan = large(10_100)
    assert len(plan.programs[0].round) >= 10_000
    assert benchmark.pedantic(violations, args=(plan,), rounds=3) == []
