"""Random module trees trained by random plans: every bit is a plain PyTorch loop's."""

import random
from collections.abc import Sequence
from functools import partial

import pytest

pytest.importorskip("torch")

from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.chains import chain, rows
from support.plain import train
from support.quick import measured, quickly
from support.random_plans import some_plan
from support.same import assert_same
from support.trees import MODELS, ROWS, WIDTH, Spec, model
from torch.optim import SGD, AdamW

from executor import run

pytestmark = pytest.mark.filterwarnings("default")  # torch.export has its own

OPTIMIZERS = {
    "adamw": partial(AdamW, lr=1e-2, fused=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
}


@settings(max_examples=6)
@given(
    made=MODELS,
    microbatches=st.sampled_from([1, 3]),
    clip=st.sampled_from([None, 0.1]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    seed=st.integers(0, 1000),
)
def test_random_trees_train_the_same(
    made: tuple[str, bool, Sequence[Spec]],
    microbatches: int,
    clip: float | None,
    optimizer: str,
    seed: int,
) -> None:
    """Whatever the tree, the cuts and what is kept where, in the memory that the plan says."""
    own = {"model": partial(model, *made), "data": partial(rows, ROWS, width=WIDTH)}
    task = chain("tree", 0, 0, 3, **own, optimizer=OPTIMIZERS[optimizer], seed=seed, clip=clip)
    with quickly():
        profile, rng = measured(task, microbatches), random.Random(seed)
        plain = train(task, microbatches)
        for _ in range(2):
            plan = some_plan(profile, rng)
            event(f"{len(plan.tasks[0].shards)} shards")
            assert_same(plan, [task], run(plan, [task]), lambda *_: plain)
