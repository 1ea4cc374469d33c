"""Models as people write them x microbatches x clipping x plans x optimizers: every bit of a run
is that of a plain PyTorch loop, dropout on.

Not every combination is run: each model once, or more often until every two values of two other
factors have met in some run. Models are those of support/architectures.py, as transformers or their
authors wrote them.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, product
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.architectures import NAMES, architecture
from support.covering import covering
from support.plain import train
from support.quick import built, least, measured, quickly
from support.random_plans import some_plan
from support.same import assert_same
from torch.optim import SGD, Adafactor, AdamW

from executor import run
from executor.workload.task import Task
from plans.schema import Plan
from profiles.schema import Profile

pytestmark = pytest.mark.filterwarnings("default")  # transformers and torch.export have their own

OPTIMIZERS = {
    "adamw": partial(AdamW, lr=1e-2, weight_decay=0.1, fused=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "adafactor": partial(Adafactor, lr=0.1),
}


class Case(NamedTuple):
    """One run. `microbatches`: of a batch of six. `plan`: built for all the memory it may want, or
    for the least there is; or a random one."""

    model: str
    microbatches: int
    clip: bool
    plan: str
    optimizer: str


WAYS = covering(product((3, 1), (False, True), ("least", "random", "all"), OPTIMIZERS))
assert len(WAYS) <= len(NAMES)
CASES = [Case(name, *way) for name, way in zip(NAMES, islice(cycle(WAYS), len(NAMES)), strict=True)]


def task_of(case: Case) -> Task:
    """The case's model with its optimizer; all of its gradients are clipped if any are."""
    made = architecture(case.model)
    clip = 0.1 if case.clip else None
    return replace(made, optimizer=OPTIMIZERS[case.optimizer], clip=clip)


@pytest.fixture(autouse=True)
def cheap() -> Iterator[None]:
    with quickly():
        yield


def named(case: Case) -> str:
    clipped = "clip" if case.clip else "free"
    return f"{case.model}-{case.microbatches}-{clipped}-{case.plan}-{case.optimizer}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
def test_bits_of_the_plain_loop(case: Case) -> None:
    """Losses, parameters, optimizer state and buffers, from the unchanged model through profile,
    plan and checker to the run."""
    task = task_of(case)
    profile, plain = measured(task, case.microbatches), train(task, case.microbatches)
    plan = plan_of(case, profile)
    assert plan.tasks[0].microbatches == case.microbatches
    assert_same(plan, [task], run(plan, [task]), lambda *_: plain)


def plan_of(case: Case, profile: Profile) -> Plan:
    """The plan that the case is about."""
    if case.plan == "random":
        return some_plan(profile, random.Random(named(case)))
    plan = built(profile) if case.plan == "all" else least(profile)
    assert len(plan.tasks[0].shards) > 1 or case.plan == "all"
    return plan
