"""Each rule against what its name says, done slowly, or against all ways there are."""

import random

import pytest
from support.dispatching import partitions

from planner.packing.bins import cut, first_fit, least_loaded, next_fit

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
