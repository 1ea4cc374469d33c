"""Programs of `planner.pipelines` for any way to train a task on several devices: proven, and with
the bits of a plain loop that adds as they do."""

import random
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")

from support.device_cases import dropping
from support.lowered import drawn, plan_of, strategy_of
from support.passes import greedy
from support.pipelined import RESIDENT
from support.same import assert_same

from executor import run
from planner.lowering import Round
from planner.pipelines.reorder import moved
from planner.shards.shard_cost import Links

pytestmark = pytest.mark.usefixtures("quick", "untimed")


@pytest.mark.parametrize("seed", range(8))
def test_any_way_at_all(seed: int) -> None:
    """Any replicas of any shard, each shard in a mode of its own, in any order."""
    case, way = drawn(seed)
    plan = plan_of(case.problem, way)
    assert_same(plan, [case.task], run(plan, [case.task]), lambda *_: case.plain(way))


def test_shards_on_devices_that_a_search_found() -> None:
    """Some are on two, with a few microbatches each."""
    case = dropping()
    layers = len(case.profile.tasks[0].layers)
    way = case.way(
        ((0,),) * (layers - 1) + ((1,),), lambda: RESIDENT, partial(greedy, rng=random.Random(0))
    )
    made = Round(strategy_of(way), Links.of(case.problem.alike(count=2).device))
    found = moved(made, 1 << 26, 20_000)
    assert found
    assert max(map(len, found.replicas)) == 2
    way = replace(way, order=found.order)
    plan = plan_of(case.problem, way)
    assert_same(plan, [case.task], run(plan, [case.task]), lambda *_: case.plain(way))
