"""Random plans of a measured task: what a search would hardly choose must train the same bits."""

import random

from support import apart
from support.quick import ROOM
from support.strategies import drawn, in_less

from planner import Problem
from planner.shards.costs import microbatch_costs
from planner.shards.cuts import cut_points
from planner.shards.shard_cost import Links
from planner.shards.ties import separable_ties
from plans.schema import Plan
from profiles.schema import Profile


def some_plan(profile: Profile, rng: random.Random) -> Plan:
    """Any cuts that may be, any mode that each shard may have, any block, little or much memory on
    the host."""
    asked = Problem.of(profile, devices=1, device_bytes=ROOM, host_bytes=None)
    (task,), links = asked.tasks, Links.of(asked.device)
    split = separable_ties(task) is not None and rng.random() < 0.7
    (costs,) = microbatch_costs(task, apart=split)
    points = cut_points(task, apart=split)
    strategy = drawn(costs, points, links, rng)
    less = in_less(strategy, rng.choice([0, 20, 100]))  # of the host's memory
    return apart.planned(asked, less if rng.random() < 0.5 else strategy)
