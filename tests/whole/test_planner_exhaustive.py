"""The planner against every strategy there is: a sample of `tests.benchmarks.exhaustive`."""

import pytest

from tests.benchmarks.exhaustive import ALLOWED, compare, describe_row

CASES = [(seed, seed % 4 + 1) for seed in range(100, 104)]


@pytest.mark.parametrize(("seed", "layers"), CASES)
def test_no_choice_is_one_percent_shorter(seed: int, layers: int) -> None:
    """All cuts, modes, blocks and microbatches of a small task, tried one by one."""
    row = compare(seed, layers)
    assert row.ratio is None or row.ratio <= ALLOWED, describe_row(row)
