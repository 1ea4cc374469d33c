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
from planner.lowering import Round, PipelineStrategy, whole
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
    return laid_out(problem, strategy_of(way))


def laid_out(problem: Problem, strategy: PipelineStrategy) -> Plan:
    """The proven plan of a strategy for the only task."""
    count, steps = strategy.devices, strategy.costs.task.steps
    asked = problem.alike(count=count)
    program = Round(strategy, Links.of(asked.device)).program()
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
    places = case.anywhere(rng)
    modes = iter(rng.choice(MODES) for _ in places)
    return case, case.way(places, lambda: next(modes), partial(greedy, rng=rng))
