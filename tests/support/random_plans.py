"""Random plans of a measured task: what a search would hardly choose must train the same bits."""

import random
from itertools import pairwise

from support import apart
from support.quick import ROOM
from support.strategies import WHOLE, in_less

from planner import Problem
from planner.shards.costs import sizes
from planner.shards.cuts import cut_points
from planner.shards.modes import Place, possible
from planner.shards.shard_cost import Links
from planner.shards.strategy import Strategy
from planner.shards.ties import separable
from plans.schema import Plan
from profiles.schema import Profile


def some_plan(profile: Profile, rng: random.Random) -> Plan:
    """Any cuts that may be, any mode that each shard may have, any block, little or much memory on
    the host."""
    asked = Problem.of(profile, devices=1, device_bytes=ROOM, host_bytes=None)
    (task,), links = asked.tasks, Links.of(asked.device)
    split = separable(task) is not None and rng.random() < 0.7
    points = cut_points(task, apart=split)
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
