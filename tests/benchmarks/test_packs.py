"""Packs: cuts of both directions and microbatches, found by asking a judge."""

from itertools import chain, combinations, pairwise, product
from random import Random

import pytest
from support.packs import Packs, best_packs, fewest

LAYERS, SAMPLES = 5, 3


def _fits(backward: bool, size: int, first: int, end: int) -> bool:
    """Backward needs twice the room."""
    return (1 + backward) * size * (end - first) <= 8


def _judge(seed: int):
    """Packs take something, microbatches take something, and so does each layer that begins one."""
    rng = Random(seed)
    begins = [[rng.randint(0, 50) for _ in range(LAYERS)] for _ in range(2)]
    sizes = [rng.randint(0, 60) for _ in range(SAMPLES + 1)]

    def judge(packs: Packs) -> float:
        runs = list(packs.runs(LAYERS))
        uneven = max(end - first for _, first, end in runs) ** 3
        ordered = sum(m * size for m, size in enumerate(packs.backward_sizes))
        samples = packs.forward_sizes + packs.backward_sizes
        cuts = sum(begins[backward][first] for backward, first, _ in runs)
        return 1000 + cuts + uneven + ordered + sum(sizes[size] for size in samples)

    return judge


def _parts(total: int):
    """Every way to share it out."""
    cuts = range(1, total)
    for inner in chain.from_iterable(combinations(cuts, count) for count in range(total)):
        ends = (0, *inner, total)
        yield tuple(b - a for a, b in pairwise(ends))


def _begins(layers: int):
    for parts in _parts(layers):
        yield tuple(sum(parts[:at]) for at in range(len(parts)))


def _every():
    """All packs that there are and that fit."""
    for backward in _begins(LAYERS):
        if not backward[-1]:
            continue
        for forward, *sizes in product(_begins(backward[-1]), _parts(SAMPLES), _parts(SAMPLES)):
            packs = Packs(forward, backward, *sizes)
            largest = max(sizes[0]), max(sizes[1])
            if all(_fits(back, largest[back], a, b) for back, a, b in packs.runs(LAYERS)):
                yield packs


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_best_of_all_packs_of_a_small_chain(seed: int) -> None:
    """Against every one of them."""
    judge = _judge(seed)
    value, packs = best_packs(LAYERS, SAMPLES, _fits, judge, steps=8000)
    assert value == judge(packs) == min(map(judge, _every()))
    assert packs in set(_every())


def test_packs_run_forward_up_to_the_turn_and_then_all_backward() -> None:
    """The pack at the turn has no forward."""
    packs = Packs((0, 2), (0, 1, 4), (1,), (1,))
    assert list(packs.runs(6)) == [
        (False, 0, 2), (False, 2, 4), (True, 4, 6), (True, 1, 4), (True, 0, 1),
    ]  # fmt: skip


def test_the_fewest_packs_are_as_long_as_they_fit() -> None:
    """By the largest microbatch of their direction, and the last backward pack first."""
    assert fewest(LAYERS, (2, 1), (1, 1, 1), _fits) == Packs((0,), (0, 1), (2, 1), (1, 1, 1))
    assert fewest(LAYERS, (3,), (2, 1), _fits) == Packs((0, 2), (0, 2, 3), (3,), (2, 1))


def test_where_a_layer_does_not_fit_there_are_no_packs() -> None:
    """With microbatches of one sample it might."""
    assert fewest(LAYERS, (1,), (5,), _fits) is None
    never = best_packs(LAYERS, SAMPLES, lambda *pack: False, _judge(0), steps=10)
    assert never is None
    assert best_packs(1, SAMPLES, lambda *pack: True, _judge(0), steps=10) is None


def test_the_same_seed_asks_for_the_same_packs() -> None:
    """So what is found can be found again."""
    one, same, other = (_asked(seed) for seed in (5, 5, 6))
    assert one == same != other


def _asked(seed: int) -> list[Packs]:
    """All packs that are judged."""
    asked: list[Packs] = []
    judge = _judge(7)

    def noted(packs: Packs) -> float:
        asked.append(packs)
        return judge(packs)

    best_packs(LAYERS, SAMPLES, _fits, noted, steps=200, seed=seed)
    return asked
