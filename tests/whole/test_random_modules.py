"""Random module trees trained by random plans: every bit is a plain PyTorch loop's."""

import random
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support import apart
from support.plain import train
from support.quick import ROOM, measured, quickly
from support.same import assert_same
from support.strategies import WHOLE, in_less
from support.trees import MODELS, ROWS, WIDTH, Spec, model
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from executor import run
from executor.workload.task import Task
from planner import Problem
from planner.shards.costs import sizes
from planner.shards.cuts import cut_points, layer_graph
from planner.shards.modes import Place, possible
from planner.shards.shard_cost import Links
from planner.shards.strategy import Strategy
from planner.shards.ties import separable, untied
from plans.schema import Plan
from profiles.schema import Profile

pytestmark = pytest.mark.filterwarnings("default")  # torch.export has its own

OPTIMIZERS = {
    "adamw": partial(AdamW, lr=1e-2, fused=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
}


def rows(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(2, ROWS, WIDTH, generator=generator)
    return inputs, targets


def some_plan(profile: Profile, rng: random.Random) -> Plan:
    """Any cuts that may be, any mode that each shard may have, any block, little or much memory on
    the host."""
    asked = Problem.of(profile, devices=1, device_bytes=ROOM, host_bytes=None)
    (task,), links = asked.tasks, Links.of(asked.device)
    split = separable(task) is not None and rng.random() < 0.7
    points = cut_points(layer_graph(untied(task) if split else task))
    inner = [point for point in points[1:-1] if rng.random() < 0.7]
    cuts = (0, *inner, points[-1])
    (costs,) = sizes(task, apart=split)
    last = len(cuts) - 2
    block = rng.randint(0, last) if costs.microbatches > 1 else last
    modes = tuple(
        rng.choice([mode for mode in WHOLE.modes(links) if possible(shard, mode, place)])
        for shard, place in (
            (costs.shard(*piece), Place(not k, k == last, block <= k < last))
            for k, piece in enumerate(pairwise(cuts))
        )
    )
    strategy = Strategy(costs, cuts, modes, block, rng.choice([2, 2, 4]))
    less = in_less(strategy, rng.choice([0, 20, 100]))  # of the host's memory
    return apart.planned(asked, less if rng.random() < 0.5 else strategy)


@settings(max_examples=25)
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
    loss = nn.functional.mse_loss
    task = Task(
        "tree", partial(model, *made), rows, loss, OPTIMIZERS[optimizer], 3, seed=seed, clip=clip
    )
    with quickly():
        profile, rng = measured(task, microbatches), random.Random(seed)
        plain = train(task, microbatches)
        for _ in range(3):
            plan = some_plan(profile, rng)
            event(f"{len(plan.tasks[0].shards)} shards")
            assert_same(plan, [task], run(plan, [task]), lambda *_: plain)
