"""Kinds fit all steps, few of them lose little, and steps get the best there are."""

from itertools import pairwise, product

import numpy as np
import pytest

from planner.packing.kinds import Kinds, Shapes, assigned, kinds_of


def _shapes(seed: int, steps: int, pipelines: int = 3, most: int = 6) -> Shapes:
    """Steps whose times follow their microbatches, more or less."""
    dice = np.random.default_rng(seed)
    counts = np.sort(dice.integers(1, most + 1, (steps, pipelines)), axis=1)[:, ::-1]
    us = counts * dice.integers(90, 110, (steps, 1)) + dice.integers(0, 9, (steps, pipelines))
    return Shapes(counts, us, np.array([20, 25, 30][:pipelines]))


def _lost(shapes: Shapes, kinds: Kinds, found: np.ndarray) -> float:
    took = shapes.took(slice(None), kinds.counts[found])
    own = shapes.us.max(axis=1)
    return float((took - own).sum() / own.sum())


@pytest.mark.parametrize("seed", range(5))
def test_every_step_fits_its_kind(seed: int) -> None:
    """And the first kind, which has as many microbatches as any."""
    shapes = _shapes(seed, 400)
    kinds = kinds_of(shapes, 8, 0.02)
    found = assigned(shapes, kinds)
    assert (shapes.counts <= kinds.counts[found]).all()
    assert (kinds.counts[0] == shapes.counts.max(axis=0)).all()
    assert (kinds.counts <= kinds.counts[0]).all()


def test_kinds_are_as_few_as_lose_little() -> None:
    """Four clusters of steps, where a kind fewer would lose more than asked for."""
    shapes = _shapes(0, 4)
    steps = np.arange(200) % 4
    many = Shapes(shapes.counts[steps], shapes.us[steps], shapes.fixed_us)
    assert len(kinds_of(many, 16, 0.0).counts) == 4
    assert len(kinds_of(many, 16, 10.0).counts) == 1
    kinds = kinds_of(many, 16, 0.02)
    assert 1 < len(kinds.counts) <= 4
    assert _lost(many, kinds, assigned(many, kinds)) <= 0.02


@pytest.mark.parametrize("seed", range(6))
def test_two_kinds_lose_hardly_more_than_the_best_two(seed: int) -> None:
    """Of all ways to divide seven steps in two: the loss that is counted, odd times included."""
    shapes = _shapes(seed, 7)

    def lost(groups: list[np.ndarray]) -> float:
        total = 0.0
        for own in groups:
            took = shapes.took(own, shapes.counts[own].max(axis=0))
            total += (took - shapes.us[own].max(axis=1)).sum()
            total += np.abs(took - took.mean()).sum() / 16
        return total

    halves = [np.array(half, bool) for half in product([False, True], repeat=6)]
    ways = [np.append(half, False) for half in halves if half.any()]
    best = min(lost([np.flatnonzero(way), np.flatnonzero(~way)]) for way in ways)
    kinds = kinds_of(shapes, 2, 0.0)
    found = assigned(shapes, kinds)
    assert lost([np.flatnonzero(found == kind) for kind in np.unique(found)]) <= 1.35 * best


@pytest.mark.parametrize("change", [0, 40, 10_000])
def test_steps_get_the_kinds_that_lose_least_in_turn(change: int) -> None:
    """Of all ways to give three kinds to six steps, with changes between them counted."""
    for seed in range(4):
        shapes = _shapes(seed, 6)
        kinds = Kinds(np.array([[6, 6, 6], [6, 5, 3], [4, 4, 4]]), np.array([600, 500, 400]))

        def cost(way: tuple[int, ...], shapes: Shapes = shapes, kinds: Kinds = kinds) -> float:
            own = kinds.counts[list(way)]
            if (own < shapes.counts).any():
                return float("inf")
            took = shapes.took(slice(None), own)
            odd = np.abs(took - kinds.us[list(way)]).sum() / 16
            turns = sum(a != b for a, b in pairwise(way))
            return float(took.sum() + odd + change * turns)

        best = min(map(cost, product(range(3), repeat=6)))
        assert cost(tuple(assigned(shapes, kinds, change).tolist())) == pytest.approx(best)


def test_kinds_that_change_too_often_are_not_made() -> None:
    """The more a change costs, the fewer kinds there are."""
    shapes = _shapes(1, 300)
    few = [len(kinds_of(shapes, 16, 0.0, change).counts) for change in (0, 20, 1_000)]
    assert few[0] > few[1] > few[2] == 1
