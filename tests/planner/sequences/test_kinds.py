"""Kinds of rounds that lack some microbatches of the full one."""

from random import Random

import pytest
from support import mixed

from plans import violations


@pytest.mark.parametrize("seed", range(12))
def test_a_round_without_the_last_microbatches_of_pipelines_is_sound(seed: int) -> None:
    """In random mixes and modes the checker proves the rounds of any such kind by themselves."""
    rng = Random(seed)
    _, counts, strategy = mixed.drawn(rng)
    kept, first = list[int](), 0
    for count in counts:
        kept += range(first, first + rng.randint(1, count))
        first += count
    assert violations(mixed.alone(strategy, kept)) == []
