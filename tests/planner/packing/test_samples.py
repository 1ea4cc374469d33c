"""Samples as they come, and moved within windows of steps."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.dispatch import Curve, PipelineType, Pool, reordered
from planner.packing.arranged import arranged, write_table
from planner.packing.samples import Samples
from plans.samples import places
from profiles.errors import FormatError

POOL = Pool((PipelineType(Curve(0.01, 1.0), 1, 1024, 4),))
LENGTHS = np.clip(np.random.default_rng(3).lognormal(4, 1.5, 35), 1, 1000).astype(np.uint32)


class Apart(Samples):
    """Samples of which no step is taken for one that came before."""

    period = 1 << 40  # type: ignore[assignment]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 7), st.integers(1, 40), st.integers(0, 9), st.integers(1, 4)
)
def test_steps_have_the_samples_of_their_windows(
    batch: int, window: int, count: int, first: int, most: int
) -> None:
    """Those that `reordered` gives them, which the table says as well, whatever steps come
    again."""
    samples, steps = Samples(LENGTHS[:12], batch, window), range(first, first + count)
    apart, which = samples.apart(steps)
    moved = samples.moved(apart, POOL)
    found = np.concatenate([*moved.lengths()])[which]
    rows = np.random.default_rng(0).integers(0, most, (len(apart), batch)).astype(np.uint16)
    table = np.concatenate([*moved.table(rows, which, most)]).astype(np.uint16)
    for begin in range(0, count, window):
        came = [samples.of(step) for step in steps[begin : begin + window]]
        entries = places(table[begin : begin + window], window, most)
        for at, kept in enumerate(reordered(POOL, came, window)):
            assert found[begin + at].tolist() == np.concatenate(came)[kept].tolist()
            assert np.flatnonzero(entries.steps == at).tolist() == kept.tolist()
            groups = entries.microbatches.ravel()[kept]
            assert groups.tolist() == rows[which[begin + at]].tolist()


@pytest.mark.parametrize(
    ("window", "steps", "laid"), [(1, 20, 7), (4, 63, 31), (4, 60, 28), (6, 13, 13), (35, 90, 55)]
)
def test_windows_that_come_again_are_laid_out_once(
    window: int, steps: int, laid: int, tmp_path: Path
) -> None:
    """With the same table as if each had been; the last window, if it is shorter, by itself."""
    once, each = (made(LENGTHS, 5, window) for made in (Samples, Apart))
    assert len(once.apart(range(steps))[0]) == laid
    one, other = (arranged(samples, range(3, 3 + steps), POOL, "ffd") for samples in (once, each))
    assert (one.kinds, one.turns, one.us) == (other.kinds, other.turns, other.us)
    tables = [write_table(tmp_path / "x", [found]) for found in (one, other)]
    assert tables[0] == tables[1]


def test_a_window_with_too_many_microbatches_is_refused() -> None:
    """With both numbers and the largest window that would do."""
    samples = Samples(np.full(64, 1000, np.uint32), 32, 4096)
    with pytest.raises(FormatError, match=r"up to 32 .* of 4096 steps 131072, .* 65536; give"):
        arranged(samples, range(2), POOL, "ffd")
    arranged(Samples(samples.lengths, 32, 2048), range(2), POOL, "ffd")
