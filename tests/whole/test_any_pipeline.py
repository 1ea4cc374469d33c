"""Programs of `planner.pipelines` for any way to train a task on several devices: proven, and with
the bits of a plain loop that adds as they do."""

import random
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")

from support.device_cases import RESIDENT, dropping
from support.device_ways import any_way
from support.passes import greedy

from planner.lowering import PipelineRound
from planner.pipelines.reorder import moved
from planner.shards.shard_cost import Links

pytestmark = pytest.mark.usefixtures("quick", "untimed")


@pytest.mark.parametrize("seed", range(9))
def test_any_way_at_all(seed: int) -> None:
    """Any replicas of any shard, each shard in a mode of its own, with whole backwards or halves,
    in any order, owned by anybody."""
    case, way = any_way(seed)
    case.trained(way)


def test_shards_on_devices_that_a_search_found() -> None:
    """Some are on two, with a few microbatches each."""
    case = dropping()
    layers = len(case.profile.tasks[0].layers)
    order = partial(greedy, rng=random.Random(0))
    way = case.way(((0,),) * (layers - 1) + ((1,),), RESIDENT, order)
    made = PipelineRound(way, Links.of(case.problem.alike(count=2).device))
    found = moved(made, 1 << 26, 20_000)
    assert found
    assert max(map(len, found.replicas)) == 2
    case.trained(replace(way, order=found.order))
