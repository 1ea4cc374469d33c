"""Whole runs laid out, in kinds of rounds: the table, read back, holds what the kinds say; they are
few, lose little, and steps get the best there are."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from support.dispatching import PACKINGS

from planner.packing import Curve, PipelineType, Pool
from planner.packing.arranged import Arrangement, arranged, write_table
from planner.packing.kinds import Kinds, Shapes, assigned, kinds_of
from planner.packing.packing import How
from planner.packing.samples import Samples
from plans.samples import open_table
from profiles.codec import file_sha256

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


def test_steps_come_again_with_their_samples(tmp_path: Path) -> None:
    """Ten steps of 100 have all 1,000 samples, and count as often as they come."""
    samples = _samples(batch=100)
    found = arranged(samples, range(25), POOL, "balanced")
    write_table(tmp_path / "x", [found])
    rows = open_table(tmp_path / "x", 100)
    assert samples.period == 10
    assert (rows[:10] == rows[10:20]).all()
    assert (rows[:5] == rows[20:]).all()
    assert sum(kind.steps for kind in found.kinds) == 25


def test_kinds_change_where_that_gains_more_than_it_takes() -> None:
    """One short step among long ones has their kind; those at the end have their own."""
    pool = Pool((PipelineType(Curve(0, 1, 1_000), 1, 256),))
    steps = [[32 if step in (3, *range(6, 12)) else 256] * 8 for step in range(12)]
    samples = Samples(np.ravel(steps).astype(np.uint32), 8)
    for change_us, turns in ((0, (3, 1, 2, 6)), (5_000, (6, 6)), (50_000, (12,))):
        found = arranged(samples, range(12), pool, "ffd", change_us=change_us)
        assert tuple(rounds for _, rounds in found.turns) == turns


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
    """The same kinds and rows."""
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
    """With the same table as if each had been."""
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
