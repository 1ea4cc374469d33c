"""Programs: predicted times against running the ops one by one, and what a round looks like."""

from functools import cache

import pytest
from support import synthetic
from support.unrolled import duration, unrolled

from planner import Problem, build
from planner.inputs.problem import Policy
from plans.schema import Program

pytestmark = pytest.mark.usefixtures("quick")


@cache
def programs(policy: Policy, budget_mib: int) -> tuple[Program, ...]:
    """Of two tasks that share a device, one with more microbatches."""
    tasks = [
        synthetic.task("a", layers=6, steps=20),
        synthetic.task("b", layers=4, steps=20, batch=8),
    ]
    profile = synthetic.profile(*tasks, usable_bytes=budget_mib << 20)
    asked = Problem.of(profile, devices=1, device_bytes=None, host_bytes=None)
    return build(asked, profile_sha256="0" * 64, policy=policy).programs


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
@pytest.mark.parametrize("budget_mib", [14, 20, 40])
@pytest.mark.parametrize("rounds", [1, 2, 12])
def test_the_closed_form_is_the_time_of_running_op_by_op(
    policy: Policy, budget_mib: int, rounds: int
) -> None:
    """(rounds - 1) periods and one round: exactly what the first `rounds` rounds take."""
    for program in programs(policy, budget_mib):
        took = {op.id: duration(op) for op in program.round}
        last = unrolled(program.round, rounds)[-1]
        end = max(start + took[name] for name, start in last.items())
        assert end == (rounds - 1) * program.period_us + program.round_us
