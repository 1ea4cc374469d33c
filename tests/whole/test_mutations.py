"""The checker bites on the planner's own plans: every harmful change of one is refused."""

import pytest
from support import synthetic
from support.based import adapters, grouped
from support.mutations import bites, mutants
from support.oracle import harm

from planner import build
from planner.inputs.problem import Policy
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")

LIMIT = 60


def planned(policy: Policy, budget_kib: int, norms: bool) -> Plan:
    """Two small chains on two devices, streamed for the most part, in two microbatches."""
    tasks = [
        synthetic.task(
            f"t{i}",
            layers=3 + i,
            seed=i,
            steps=3,
            batch=4,
            param_bytes=4096,
            boundary_bytes=2048,
            norms=norms,
        )
        for i in range(2)
    ]
    asked = synthetic.problem(*tasks, usable_bytes=budget_kib << 10, devices=2)
    return build(asked, profile_sha256="0" * 64, policy=policy)


@pytest.mark.parametrize(
    ("policy", "budget_kib", "norms"),
    [("hydra", 64, False), ("gantry", 45, True)],
)
def test_every_harmful_mutant_of_a_built_plan_is_refused(
    policy: Policy, budget_kib: int, norms: bool
) -> None:
    """The oracle, which shares no code with the checker, says which mutants do harm."""
    plan = planned(policy, budget_kib, norms)
    assert harm(plan, orders=3) is None
    some = mutants(plan, seed=4, limit=LIMIT)
    assert bites(some, harm, lambda *_: True).total() > LIMIT // 2


@pytest.mark.parametrize(
    ("devices", "budget_kib", "batch", "groups"),
    [
        (1, 64, 2, [["t0", "t1", "t2"]]),
        (2, 200, 4, [["t0", "t1", "t2"]]),
        (1, 62, 2, [["t0", "t1"], ["t2"]]),
    ],
)
def test_every_harmful_mutant_of_tasks_on_a_base_is_refused(
    devices: int, budget_kib: int, batch: int, groups: list[list[str]]
) -> None:
    """Of three that train together, streamed or in a pipeline, or of two and one."""
    tasks = adapters(
        3, layers=4, steps=3, batch=batch, param_bytes=8192, boundary_bytes=2048, norms=True
    )
    asked = synthetic.problem(*tasks, usable_bytes=budget_kib << 10, devices=devices)
    plan = grouped(asked, groups)
    assert [list(program.tasks) for program in plan.programs] == groups
    assert {task.base for task in plan.tasks} == {"t0"}  # the oracle knows bases by their names
    assert harm(plan, orders=3) is None
    some = mutants(plan, seed=4, limit=LIMIT)
    assert bites(some, harm, lambda *_: True).total() > LIMIT // 2
