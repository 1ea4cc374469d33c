"""Random mixes of pipelines for a made-up task, and the plan of any kind of their rounds."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
from msgspec import structs
from support import piped, synthetic

from planner.inputs import Layout, side_by_side
from planner.lowering import PipelineRound, PipelineStrategy
from planner.pipelines import Passes, beside
from planner.pipelines.modes import Choices
from planner.sequences.kinds import Shape, cycle_of
from planner.shards import TaskCosts
from plans.schema import Plan

PASSES = [*map(Passes, ("1f1b", "gpipe", "breadth", "zero-bubble")), Passes("interleaved", 2)]


def drawn(rng: Random) -> tuple[Layout, list[int], PipelineStrategy]:
    """A mix of up to four devices, the microbatches of each pipeline, and a strategy in any
    modes."""
    layout = rng.choice([one for devices in (1, 2, 3, 4) for one in side_by_side(devices)])
    task = synthetic.task(
        "a",
        layers=8,
        batch=16,
        param_bytes=rng.choice([1_000, 1 << 18]),
        boundary_bytes=rng.choice([1 << 10, 1 << 18]),
    )
    counts = [rng.randint(1, 5) for _ in layout.depths]
    batches = [TaskCosts(task, 1, count=count) for count in counts]
    passes, pieces = rng.choice(PASSES), rng.choice([1, 2, 4])
    sketch = beside(layout.depths, batches, passes, range(9), pieces, piped.LINKS)
    assert sketch
    strategy = sketch.strategy
    choices = Choices(strategy, piped.LINKS)
    modes = tuple(rng.choice(choices.modes(k)) for k in range(len(strategy.shards)))
    return layout, counts, replace(strategy, modes=modes)


def alone(strategy: PipelineStrategy, kept: Sequence[int]) -> Plan:
    """The plan whose only rounds are of the kind with these microbatches; nothing is proven yet."""
    costs, count = strategy.costs, len(kept)
    each, none = (costs.cut(strategy.cuts),) * count, np.zeros((2, count))
    shape = Shape(tuple(kept), (1,) * count, (each, each, each), none, none[:0])
    full = PipelineRound(strategy, piped.LINKS)
    task = structs.replace(costs.task, batch=count)
    fewer = replace(strategy, costs=replace(costs, task=task, count=count))
    return piped.planned(fewer, full.program(cycle_of(full, shape)))
