"""Any way to train a task on several devices as `planner.lowering` lays it out."""

import random
from functools import partial

from support.device_cases import (
    KEPT,
    PACKED,
    SAVED,
    SPILLING,
    STREAMED,
    Case,
    dropping,
    sharing,
)
from support.device_ops import Way
from support.passes import greedy
from support.pipelined import RESIDENT

from planner.builder import assemble, certified
from planner.inputs import Layout
from planner.inputs.problem import Effort, Problem
from planner.lowering import PipelineRound, PipelineStrategy, whole
from planner.search.task import Candidate
from planner.shards.shard_cost import Links
from plans import prove
from plans.prediction import Bound
from plans.schema import Plan, Segment
from plans.timing import duration_us

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


def drawn(seed: int) -> tuple[Case, Way]:
    """Any replicas of any shard, each shard in a mode of its own, in any order."""
    rng = random.Random(seed)
    case = (sharing("clipped"), dropping())[seed % 2]
    layers = len(case.profile.tasks[0].layers)
    devices = [rng.sample(range(3), rng.choice([1, 1, 2, 3])) for _ in range(layers - 1)]
    places = (*map(tuple, devices), (0, 1, 2))
    modes = iter(rng.choice(MODES) for _ in range(layers))
    return case, case.way(places, lambda: next(modes), partial(greedy, rng=rng))
