"""Packings: each rule against what its name says, done slowly, or against all ways there are."""

import random

import numpy as np
import pytest
from support.dispatching import PACKINGS, partitions

from planner.packing import Curve
from planner.packing.bins import cut, first_fit, least_loaded, next_fit
from planner.packing.packing import How, packed
from planner.packing.sums import StepKind, largest, loads, renumbered

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


CASES = [random.Random(seed) for seed in range(40)]


def _sizes(dice: random.Random, most: int, count: int) -> list[int]:
    return sorted((dice.randint(1, most) for _ in range(dice.randint(1, count))), reverse=True)


def test_first_fit_is_the_first_bin_with_room() -> None:
    """A bin that was passed over gets what is short enough."""
    assert first_fit([6, 5, 3, 1, 5, 4], 10) == [0, 1, 0, 0, 1, 2]


def test_next_fit_never_looks_back() -> None:
    """A bin is over as soon as one did not fit."""
    assert next_fit([5, 5, 1, 10, 2, 8, 1], 10) == [0, 0, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("dice", CASES)
def test_least_loaded_is_the_lightest_bin_with_room(dice: random.Random) -> None:
    """As a scan finds it; and None only if one has no room anywhere."""
    sizes, bins = _sizes(dice, 50, 30), dice.randint(1, 12)
    rooms, loads, expected = [100] * bins, [0] * bins, list[int]()
    for size in sizes:
        open_ = [number for number in range(bins) if rooms[number] >= size]
        if not open_:
            break
        best = min(open_, key=lambda number: (loads[number], number))
        rooms[best] -= size
        loads[best] += size * size
        expected.append(best)
    found = least_loaded(sizes, [float(size * size) for size in sizes], 100, bins)
    assert found == (expected if len(expected) == len(sizes) else None)


@pytest.mark.parametrize("dice", CASES)
def test_no_padded_bins_take_less_than_the_best_cut(dice: random.Random) -> None:
    """Of all divisions of the sequences, contiguous or not."""
    sizes, fixed = _sizes(dice, 40, 7), dice.choice([0, 30, 200])

    def took(group: list[int]) -> float:
        padded = len(group) * max(group)
        return padded + fixed if padded <= 60 else float("inf")

    best = min(sum(map(took, groups)) for groups in partitions(sizes))
    found = cut(sizes, [float(size) for size in sizes], 60, fixed)
    bins = [[s for s, n in zip(sizes, found, strict=True) if n == b] for b in set(found)]
    assert sum(map(took, bins)) == best


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
