"""Pipelines of several depths side by side."""

from itertools import pairwise
from random import Random

import pytest
from support import mixed

from planner.sequences.mix import mixes
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


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_all_pipelines_are_added_up(seed: int) -> None:
    """The checker proves plans of random mixes, where every shard has a replica in each
    pipeline."""
    mix, _, strategy = mixed.drawn(Random(seed))
    assert all(len(devices) == len(mix.depths) for devices in strategy.replicas)
    task = strategy.costs.task
    kept = range(len(strategy.sized))
    assert violations(mixed.alone(strategy, kept)) == [], task.name
