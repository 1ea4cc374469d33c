"""Random mixes of pipelines for a made-up task, and the plan of any kind of their rounds."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from msgspec import structs
from support import piped, synthetic

from planner.lowering import Round, PipelineStrategy
from planner.pipelines.modes import Choices
from planner.sequences.kinds import Shape, cycle_of
from planner.sequences.mix import Lane, Mix, Passes, mixes, side_by_side
from planner.shards import TaskCosts
from plans.schema import Plan

PASSES = [
    *map(Passes, ("1f1b", "gpipe", "breadth", "zero-bubble")),
    Passes("interleaved", 2),
]


def drawn(rng: Random) -> tuple[Mix, list[int], PipelineStrategy]:
    """A mix of up to four devices, the microbatches of each pipeline, and a strategy in any
    modes."""
    mix = rng.choice([mix for devices in (1, 2, 3, 4) for mix in mixes(devices)])
    task = synthetic.task(
        "a",
        layers=8,
        batch=16,
        param_bytes=rng.choice([1_000, 1 << 18]),
        boundary_bytes=rng.choice([1 << 10, 1 << 18]),
    )
    counts = [rng.randint(1, 5) for _ in mix.depths]
    pairs = zip(mix.depths, counts, strict=True)
    lanes = [Lane(depth, count, TaskCosts(task, 1, count=count)) for depth, count in pairs]
    passes, pieces = rng.choice(PASSES), rng.choice([1, 2, 4])
    strategy = side_by_side(lanes, piped.LINKS, range(9), passes, pieces)
    assert strategy
    choices = Choices(strategy, piped.LINKS)
    modes = tuple(rng.choice(choices.modes(k)) for k in range(len(strategy.shards)))
    return mix, counts, replace(strategy, modes=modes)


def alone(strategy: PipelineStrategy, kept: Sequence[int]) -> Plan:
    """The plan whose only rounds are of the kind with these microbatches; nothing is proven yet."""
    costs, count = strategy.costs, len(kept)
    shape = Shape(tuple(kept), (1,) * count, (costs.cut(strategy.cuts),) * count)
    full = Round(strategy, piped.LINKS)
    task = structs.replace(costs.task, batch=count)
    fewer = replace(strategy, costs=replace(costs, task=task, count=count))
    return piped.planned(fewer, full.program(cycle_of(full, shape)))
