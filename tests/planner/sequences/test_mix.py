"""Pipelines of several depths side by side."""

from itertools import pairwise
from random import Random

import pytest
from support import mixed, piped, synthetic

from planner.sequences.mix import Lane, Passes, mixes, side_by_side
from planner.shards import TaskCosts
from plans import violations


def test_devices_are_divided_in_every_way() -> None:
    """All partitions of 4 into pipelines, the deepest first."""
    assert [str(mix) for mix in mixes(4)] == ["4", "3+1", "2+2", "2+1+1", "1+1+1+1"]


def test_pipelines_have_microbatches_and_devices_of_their_own() -> None:
    """Each microbatch runs through all shards on the devices of one pipeline, from its first to its
    last."""
    mix, counts, strategy = mixed.drawn(Random(3))
    first = 0
    for depth, start, count in zip(mix.depths, mix.firsts, counts, strict=True):
        for m in range(first, first + count):
            places = [strategy.where[k, m] for k in range(len(strategy.shards))]
            assert sorted(set(places)) == [*range(start, start + depth)]
            assert all(b - a in (0, 1) for a, b in pairwise(places))
        first += count


def test_a_mix_has_the_largest_microbatches_of_its_pipelines() -> None:
    """Whichever has them: by these its task is described."""
    task = synthetic.task("a", layers=4, batch=8)
    lanes = [Lane(2, 3, TaskCosts(task, 1, count=3)), Lane(1, 2, TaskCosts(task, 4, count=2))]
    strategy = side_by_side(lanes, piped.LINKS, range(5), Passes("1f1b"), 1)
    assert strategy
    assert (strategy.costs.microbatch, strategy.costs.microbatches) == (4, 5)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_all_pipelines_are_added_up(seed: int) -> None:
    """The checker proves plans of random mixes, where every shard has a replica in each
    pipeline."""
    mix, _, strategy = mixed.drawn(Random(seed))
    assert all(len(devices) == len(mix.depths) for devices in strategy.replicas)
    task = strategy.costs.task
    kept = range(len(strategy.sized))
    assert violations(mixed.alone(strategy, kept)) == [], task.name
