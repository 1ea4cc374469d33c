"""A kind says what its steps hold, in the mean and at most."""

import numpy as np
import pytest

from planner.packing.sums import Sums


def test_microbatches_get_the_numbers_of_their_kind() -> None:
    """Pipeline by pipeline; those that a step does not need are the last of a pipeline."""
    sums = Sums(np.array([3, 2]), padded=False)
    own = sums.add(np.array([0, 1, 2, 2]), np.array([2, 1]), np.array([30, 20, 9, 1]), 1)
    assert own.tolist() == [0, 1, 3, 3]


@pytest.mark.parametrize("padded", [False, True])
def test_means_and_most_are_over_the_steps(padded: bool) -> None:
    """A step that comes three times counts three times; nothing is a token of padding."""
    sums = Sums(np.array([2]), padded=padded)
    sums.add(np.array([0, 0, 1]), np.array([2]), np.array([300, 100, 200]), 3)
    sums.add(np.array([0, 0, 0]), np.array([1]), np.array([10, 20, 30]), 1)
    kind = sums.kind()
    first = [600, 90] if padded else [400, 60]
    squares = [600 * 300, 90 * 30] if padded else [300**2 + 100**2, 100 + 400 + 900]
    assert kind.most == ((768, 256) if padded else (512, 256),)
    assert kind.tokens == (((3 * first[0] + first[1]) // 4, round((3 * 200 + 1) / 4)),)
    assert kind.squares == (((3 * squares[0] + squares[1]) // 4, round((3 * 200**2 + 1) / 4)),)
    assert kind.steps == 4


def test_the_first_kind_is_as_large_as_any() -> None:
    """Its microbatches have room for those of other kinds in their places."""
    first, other = Sums(np.array([2, 1]), padded=False), Sums(np.array([1, 1]), padded=False)
    first.add(np.array([0, 1, 2]), np.array([2, 1]), np.array([300, 200, 100]), 1)
    other.add(np.array([0, 1]), np.array([1, 1]), np.array([600, 700]), 1)
    assert first.kind([first, other]).most == ((768, 256), (768,))
    assert first.kind().most == ((512, 256), (256,))


def test_some_steps_are_kept_as_they_are() -> None:
    """Evenly spread, however many there are; of a step without samples a token of padding."""
    sums = Sums(np.array([2]), padded=False)
    for step in range(100):
        sums.add(np.array([0, 0]), np.array([1]), np.array([step + 1, 2]), 1)
    some = sums.kind().some
    assert 16 <= len(some) <= 32
    assert np.diff(some[:, 0, 0]).tolist() == [4] * (len(some) - 1)
    assert some[1].tolist() == [[7, 1], [5**2 + 2**2, 1]]
