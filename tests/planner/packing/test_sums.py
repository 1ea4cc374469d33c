"""A kind says what its steps hold, in the mean and at most."""

import numpy as np
import pytest

from planner.packing.sums import StepKind, largest, loads, renumbered


def test_microbatches_get_the_numbers_of_their_kind() -> None:
    """Pipeline by pipeline; those that a step does not need are the last of a pipeline."""
    groups = np.array([0, 1, 2, 2], np.uint16)
    assert renumbered(groups, np.array([2, 1]), np.array([3, 2])).tolist() == [0, 1, 3, 3]


@pytest.mark.parametrize("padded", [False, True])
def test_means_and_most_are_over_the_steps(padded: bool) -> None:
    """A step that comes three times counts three times; nothing is a token of padding."""
    one = loads(np.array([0, 0, 1]), np.array([300, 100, 200]), 2, padded=padded)
    other = loads(np.array([0, 0, 0]), np.array([10, 20, 30]), 2, padded=padded)
    kind = StepKind.of(np.stack([one, other]), np.array([3, 1]), np.array([2]))
    first = [600, 90] if padded else [400, 60]
    squares = [600 * 300, 90 * 30] if padded else [300**2 + 100**2, 100 + 400 + 900]
    assert kind.most == ((768, 256) if padded else (512, 256),)
    assert kind.tokens == (((3 * first[0] + first[1]) // 4, round((3 * 200 + 1) / 4)),)
    assert kind.squares == (((3 * squares[0] + squares[1]) // 4, round((3 * 200**2 + 1) / 4)),)
    assert kind.steps == 4


def test_the_first_kind_is_as_large_as_any() -> None:
    """Its microbatches have room for those of other kinds in their places."""
    kinds = [
        StepKind.of(np.array([[tokens, tokens]]), np.array([1]), np.array(counts))
        for tokens, counts in (([300, 200, 100], [2, 1]), ([600, 700], [1, 1]))
    ]
    assert largest(kinds) == ((768, 256), (768,))


def test_some_steps_are_kept_as_they_are() -> None:
    """Evenly spread, however many there are; of a step without samples a token of padding."""
    held = np.array([[[step + 1, 0], [step + 1, 0]] for step in range(100)])
    some = StepKind.of(held, np.ones(100, np.int64), np.array([2])).some
    assert some[:, 0].tolist() == [[step + 1, 1] for step in range(0, 100, 4)]
