"""Samples as they come."""

from pathlib import Path

import numpy as np
import pytest

from planner.packing import Curve, PipelineType, Pool
from planner.packing.arranged import arranged, write_table
from planner.packing.samples import Samples

POOL = Pool((PipelineType(Curve(0.01, 1.0), 1, 1024, 4),))
LENGTHS = np.clip(np.random.default_rng(3).lognormal(4, 1.5, 35), 1, 1000).astype(np.uint32)


class Apart(Samples):
    """Samples of which no step is taken for one that came before."""

    period = 1 << 40  # type: ignore[assignment]


@pytest.mark.parametrize(("steps", "laid"), [(5, 5), (7, 7), (20, 7)])
def test_steps_that_come_again_are_laid_out_once(steps: int, laid: int, tmp_path: Path) -> None:
    """With the same table as if each had been."""
    once, each = (made(LENGTHS, 5) for made in (Samples, Apart))
    assert len(once.apart(range(3, 3 + steps))[0]) == laid
    one, other = (arranged(samples, range(3, 3 + steps), POOL, "ffd") for samples in (once, each))
    assert (one.kinds, one.turns) == (other.kinds, other.turns)
    tables = [write_table(tmp_path / "x", [found]) for found in (one, other)]
    assert tables[0] == tables[1]
