"""Packings hold every sequence within the limit, and are as good as all ways there are."""

import random

import numpy as np
import pytest
from support.dispatching import PACKINGS, partitions

from planner.packing import Curve
from planner.packing.packing import How, packed

CURVE = Curve(0.01, 2.0, 150.0)


def _case(seed: int) -> tuple[list[int], int]:
    dice = random.Random(seed)
    return [dice.randint(1, 300) for _ in range(dice.randint(1, 60))], dice.choice([300, 512, 2048])


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("seed", range(8))
def test_a_packing_says_what_is_in_its_microbatches(how: How, seed: int) -> None:
    """Tokens, squares and times are those of its groups, padding counted, and tokens descend."""
    lengths, most = _case(seed)
    found = packed(lengths, how, most, CURVE, depth=3)
    for number, (tokens, squares, took) in enumerate(
        zip(found.tokens, found.squares, found.us, strict=True)
    ):
        own = [s for s, group in zip(lengths, found.groups, strict=True) if group == number] or [1]
        own = [max(own)] * len(own) if how == "pad" else own
        assert (tokens, squares) == (sum(own), sum(s * s for s in own))
        assert took == np.ceil(0.01 * squares + 2.0 * tokens + 150.0)
    assert list(found.tokens) == sorted(found.tokens, reverse=True)
    assert found.tokens[0] <= most


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_balanced_is_near_the_best_of_all_packings(depth: int, seed: int) -> None:
    """Of up to eight sequences: at most 1 % longer than the shortest way to group them."""
    dice = random.Random(seed)
    for _ in range(4):
        lengths = [dice.randint(1, 300) for _ in range(dice.randint(2, 8))]
        best = min(
            sum(times) + (depth - 1) * max(times)
            for groups in partitions(lengths)
            if max(map(sum, groups)) <= 512
            for times in [[0.01 * sum(s * s for s in g) + 2 * sum(g) + 150 for g in groups]]
        )
        took = packed(lengths, "balanced", 512, CURVE, depth).total_us(depth)
        assert took <= 1.01 * best


def test_padding_of_several_stages_cuts_finer() -> None:
    """What the pipeline waits for at its ends costs more than the fixed part of microbatches."""
    lengths = [100] * 16
    one, four = (packed(lengths, "pad", 2048, CURVE, depth) for depth in (1, 4))
    assert len(one.tokens) == 1
    assert len(four.tokens) > 2
    assert four.total_us(4) < one.total_us(4)


def test_a_sequence_that_no_microbatch_holds_is_an_error() -> None:
    """With both numbers."""
    with pytest.raises(ValueError, match=r"300 tokens.* 256"):
        packed([10, 300], "ffd", 256, CURVE)
