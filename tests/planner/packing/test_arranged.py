"""Whole runs laid out: the table, read back, holds what the kinds say."""

from pathlib import Path

import numpy as np
import pytest
from support.dispatching import PACKINGS

from planner.packing import Curve, PipelineType, Pool
from planner.packing.arranged import Arrangement, arranged, write_table
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
