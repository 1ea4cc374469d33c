"""Pipelines of several depths side by side."""

from itertools import chain, pairwise
from random import Random

import pytest
from support import mixed, piped, synthetic

from planner.pipelines import Passes, beside
from planner.shards import TaskCosts
from plans import violations


def test_pipelines_have_microbatches_and_devices_of_their_own() -> None:
    """Each microbatch runs through all shards on the devices of one pipeline, from its first to its
    last."""
    layout, counts, strategy = mixed.drawn(Random(3))
    first = 0
    for stages, count in zip(layout.stages, counts, strict=True):
        for m in range(first, first + count):
            places = [strategy.where[k, m] for k in range(len(strategy.shards))]
            assert sorted(set(places)) == [*chain(*stages)]
            assert all(b - a in (0, 1) for a, b in pairwise(places))
        first += count


def test_the_task_has_the_largest_microbatches_of_its_pipelines() -> None:
    """Whichever has them: by these it is described."""
    task = synthetic.task("a", layers=4, batch=8)
    batches = [TaskCosts(task, 1, count=3), TaskCosts(task, 4, count=2)]
    sketch = beside([2, 1], batches, Passes("1f1b"), range(5), 1, piped.LINKS)
    assert sketch
    costs = sketch.strategy.costs
    assert (costs.microbatch, costs.microbatches) == (4, 5)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_all_pipelines_are_added_up(seed: int) -> None:
    """The checker proves plans of random layouts, where every shard has a replica in each
    pipeline."""
    layout, _, strategy = mixed.drawn(Random(seed))
    assert all(len(devices) == len(layout.pipelines) for devices in strategy.replicas)
    kept = range(len(strategy.sized))
    assert violations(mixed.alone(strategy, kept)) == []
