"""Programs of `planner.pipelines` for any way to train a task on several devices: proven, and with
the bits of a plain loop that adds as they do."""

import random
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")

from support.device_cases import KEPT, PACKED, SAVED, SPILLING, STREAMED, dropping, sharing
from support.device_ops import Way
from support.passes import greedy
from support.pipelined import RESIDENT
from support.same import assert_same

from executor import run
from planner.builder import assemble, certified
from planner.inputs import Layout
from planner.inputs.problem import Effort, Problem
from planner.lowering import PipelineRound, PipelineStrategy, whole
from planner.pipelines.reorder import moved
from planner.search.task import Candidate
from planner.shards.shard_cost import Links
from plans import prove
from plans.metrics import duration_us
from plans.prediction import Bound
from plans.schema import Plan, Segment

pytestmark = pytest.mark.usefixtures("quick", "untimed")

MODES = (RESIDENT, SPILLING, STREAMED, KEPT, SAVED, PACKED)


def strategy_of(way: Way) -> PipelineStrategy:
    """The way as the planner sees it."""
    order, shape = whole(way.order, way.last, ()), Layout((1,) * len(way.order))
    return PipelineStrategy(way.costs, way.cuts, way.modes, order, shape, "any")


def plan_of(problem: Problem, way: Way) -> Plan:
    """The way as the planner lays it out."""
    count, strategy = len(way.order), strategy_of(way)
    asked = problem.alike(count=count)
    program = PipelineRound(strategy, Links.of(asked.device)).program()
    steps = way.costs.task.steps
    segment = Segment(program.name, tuple(range(count)), steps, 0, duration_us(program, steps))
    made = [Candidate(strategy, (program,))]
    plan = certified(
        asked, assemble(asked, made, [segment], "gantry", Effort(0, 0)), [Bound("", 0)]
    )
    prove(plan)
    return plan


@pytest.mark.parametrize("seed", range(8))
def test_any_way_at_all(seed: int) -> None:
    """Any replicas of any shard, each shard in a mode of its own, in any order."""
    rng = random.Random(seed)
    case = (sharing("clipped"), dropping())[seed % 2]
    layers = len(case.profile.tasks[0].layers)
    devices = [rng.sample(range(3), rng.choice([1, 1, 2, 3])) for _ in range(layers - 1)]
    places = (*map(tuple, devices), (0, 1, 2))
    modes = iter(rng.choice(MODES) for _ in range(layers))
    way = case.way(places, lambda: next(modes), partial(greedy, rng=rng))
    plan = plan_of(case.problem, way)
    assert_same(plan, [case.task], run(plan, [case.task]), lambda *_: case.plain(way))


def test_shards_on_devices_that_a_search_found() -> None:
    """Some are on two, with a few microbatches each."""
    case = dropping()
    layers = len(case.profile.tasks[0].layers)
    way = case.way(
        ((0,),) * (layers - 1) + ((1,),), lambda: RESIDENT, partial(greedy, rng=random.Random(0))
    )
    made = PipelineRound(strategy_of(way), Links.of(case.problem.alike(count=2).device))
    found = moved(made, 1 << 26, 20_000)
    assert found
    assert max(map(len, found.replicas)) == 2
    way = replace(way, order=found.order)
    plan = plan_of(case.problem, way)
    assert_same(plan, [case.task], run(plan, [case.task]), lambda *_: case.plain(way))
