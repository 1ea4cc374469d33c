"""Packings: each rule against what its name says, done slowly, or against all ways there are."""

import random
import tracemalloc
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from support.dispatching import PACKINGS, partitions

from planner.packing import Curve, PipelineType, Pool
from planner.packing.arranged import Arrangement, arranged, write_table
from planner.packing.bins import cut, first_fit, least_loaded, next_fit
from planner.packing.kinds import Kinds, Shapes, assigned, kinds_of
from planner.packing.packing import How, packed
from planner.packing.samples import Samples, counted
from planner.packing.sums import StepKind, loads
from plans.samples import open_table
from profiles.codec import file_sha256

CURVE = Curve(0.01, 2.0, 150.0)


def _case(seed: int) -> tuple[list[int], int]:
    dice = random.Random(seed)
    return [dice.randint(1, 300) for _ in range(dice.randint(1, 60))], dice.choice([300, 512, 2048])


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("seed", range(3))
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
@pytest.mark.parametrize("seed", range(3))
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


def test_a_sequence_that_no_microbatch_holds_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"300 tokens.* 256"):
        packed([10, 300], "ffd", 256, CURVE)


CASES = [random.Random(seed) for seed in range(15)]


def _sizes(dice: random.Random, most: int, count: int) -> list[int]:
    return sorted((dice.randint(1, most) for _ in range(dice.randint(1, count))), reverse=True)


def test_first_fit_is_the_first_bin_with_room() -> None:
    """A bin that was passed over gets what is short enough."""
    assert first_fit([6, 5, 3, 1, 5, 4], 10) == [0, 1, 0, 0, 1, 2]


@pytest.mark.parametrize("dice", CASES)
def test_first_fit_is_what_a_scan_finds(dice: random.Random) -> None:
    """Of sizes in any order."""
    sizes, rooms = [dice.randint(1, 50) for _ in range(100)], list[int]()
    for size, number in zip(sizes, first_fit(sizes, 70), strict=True):
        rooms += [70] * (number == len(rooms))
        assert number == next(at for at, room in enumerate(rooms) if room >= size)
        rooms[number] -= size


def test_next_fit_never_looks_back() -> None:
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


SHORT = PipelineType(Curve(0.001, 1.0, 50.0), depth=1, longest=512, count=2)
LONG = PipelineType(Curve(0.001, 0.5, 80.0), depth=2, longest=4096, count=2)
POOL = Pool((SHORT, LONG))


def _samples(count: int = 1_000, batch: int = 70) -> Samples:
    drawn = np.random.default_rng(0).lognormal(5, 1.2, count)
    return Samples(np.clip(drawn, 1, 4096).astype(np.uint32), batch)


def _kind_of(found: Arrangement) -> list[int]:
    return [kind for kind, rounds in found.turns for _ in range(rounds)]


@pytest.mark.parametrize("how", PACKINGS)
def test_every_microbatch_of_the_table_is_what_its_kind_says(how: How, tmp_path: Path) -> None:
    """Added up sample by sample: at most as many tokens as the kind has, and its means."""
    samples, path = _samples(), tmp_path / "x.samples"
    found = arranged(samples, range(5, 65), POOL, how)
    assert write_table(path, [found]) == file_sha256(path)
    rows, kinds = open_table(path, 70), _kind_of(found)
    assert len(rows) == len(kinds) == 60
    width = sum(map(len, found.kinds[0].most))
    every: list[list[list[int]]] = [[[] for _ in range(width)] for _ in rows]
    for at, row in enumerate(rows.tolist()):
        for sample, group in enumerate(row):
            length = int(samples.lengths[((5 + at) * 70 + sample) % 1_000])
            every[at][group].append(length)
    sums = [np.zeros((2, sum(map(len, kind.most)))) for kind in found.kinds]
    for held, number in zip(every, kinds, strict=True):
        assert sum(map(len, held)) == 70
        most = [tokens for own in found.kinds[number].most for tokens in own]
        assert not any(held[len(most) :])
        for group, own in enumerate(held[: len(most)]):
            own = [max(own)] * len(own) if how == "pad" and own else own or [1]
            assert sum(own) <= most[group]
            sums[number][:, group] += sum(own), sum(length * length for length in own)
    for kind, own in zip(found.kinds, sums, strict=True):
        means = [[mean for part in each for mean in part] for each in (kind.tokens, kind.squares)]
        assert np.abs(own / max(1, kind.steps) - means).max() <= 0.5 or not kind.steps
    assert sum(kind.steps for kind in found.kinds) == 60


def test_no_pipeline_has_more_than_it_holds() -> None:
    """Microbatches of kinds are multiples of 256 tokens, and kind 0 is as large as any."""
    found = arranged(_samples(), range(60), POOL, "balanced")
    for kind in found.kinds:
        for own, first, one in zip(
            kind.most, found.kinds[0].most, (*[SHORT] * 2, *[LONG] * 2), strict=True
        ):
            assert max(own) <= one.longest
            assert not any(tokens % 256 for tokens in own)
            assert all(a <= b for a, b in zip(own, first, strict=False))
            assert len(own) <= len(first)


def test_steps_on_two_pools_have_one_table(tmp_path: Path) -> None:
    """Each row is that of its step, laid out on its own pool."""
    samples, other = _samples(), Pool((LONG,))
    first = [step for step in range(5, 45) if step % 3]
    parts = [
        arranged(samples, first, POOL, "balanced"),
        arranged(samples, range(6, 45, 3), other, "balanced"),
    ]
    write_table(tmp_path / "x", parts)
    rows = open_table(tmp_path / "x", 70)
    assert len(rows) == 40
    for part in parts:
        for at, step in enumerate(part.steps):
            assert (rows[step - 5] == part.rows[part.which[at]]).all()


def test_processes_change_nothing() -> None:
    given = (_samples(), range(70), POOL, "balanced")
    one, two = arranged(*given), arranged(*given, jobs=2)
    assert (one.kinds, one.turns) == (two.kinds, two.turns)
    assert (one.rows == two.rows).all()


POOL_SAMPLES = Pool((PipelineType(Curve(0.01, 1.0), 1, 1024, 4),))
LENGTHS = np.clip(np.random.default_rng(3).lognormal(4, 1.5, 35), 1, 1000).astype(np.uint32)


class Apart(Samples):
    """Samples of which no step is taken for one that came before."""

    period = 1 << 40  # type: ignore[assignment]


@pytest.mark.parametrize(("steps", "laid"), [(5, 5), (7, 7), (20, 7)])
def test_steps_that_come_again_are_laid_out_once(steps: int, laid: int, tmp_path: Path) -> None:
    once, each = (made(LENGTHS, 5) for made in (Samples, Apart))
    assert len(once.apart(range(3, 3 + steps))[0]) == laid
    one, other = (
        arranged(samples, range(3, 3 + steps), POOL_SAMPLES, "ffd") for samples in (once, each)
    )
    assert (one.kinds, one.turns) == (other.kinds, other.turns)
    tables = [write_table(tmp_path / "x", [found]) for found in (one, other)]
    assert tables[0] == tables[1]


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


@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("dice", CASES)
def test_due_samples_are_counted_as_often_as_they_come(dice: random.Random) -> None:
    """Steps begin anywhere, and all samples come again and again."""
    lengths = np.array([dice.randint(1, 9) for _ in range(dice.randint(5, 30))], np.uint32)
    samples = Samples(lengths, dice.randint(1, len(lengths)))
    first, steps = dice.randrange(20), dice.randint(1, 40)
    every = np.concatenate([samples.of(step) for step in range(first, first + steps)])
    found = samples.due(first, steps)
    assert found.tolist() == np.bincount(every, minlength=len(found)).tolist()


def test_counting_takes_no_copy_of_the_samples() -> None:
    """Of many samples, memory for a part of them at a time."""
    lengths = np.ones(1 << 23, np.uint32)
    tracemalloc.start()
    try:
        assert counted(lengths).tolist() == [0, 1 << 23]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < lengths.nbytes / 2
