"""What microbatches count in the loss of their batch."""

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from executor.errors import RunError
from executor.workload import Batch, part, shares

TARGETS = torch.tensor([[1, -100], [-100, -100], [2, 3], [4, 5]])


def shared(weigh: Callable[[Any], Any] | None, size: int, targets: torch.Tensor = TARGETS) -> Any:
    batch = Batch(torch.zeros(4, 2), targets)
    return shares(weigh, batch, [part(batch, n, size) for n in range(0, 4, size)])


def valid(batch: Any) -> torch.Tensor:
    return (batch[1] != -100).sum()


def test_each_counts_its_part_of_the_whole() -> None:
    """One that counts nothing has no part, and equal ones have the same bits as without weights."""
    assert [share.divisor for share in shared(valid, 1)] == [5, math.inf, 2.5, 2.5]
    assert {share.total for share in shared(valid, 1)} == {5}
    assert shared(lambda _: 7 / 3, 4) == [(1, 7 / 3)]
    alike = [share.divisor for share in shared(lambda batch: 0.1 * len(batch[0]), 2)]
    assert alike == [share.divisor for share in shared(None, 2)] == [2, 2]


@pytest.mark.parametrize(
    ("weight", "targets", "said"),
    [
        (lambda _: -1, TARGETS, "weight gave -1; it must be a number from 0 on"),
        (lambda _: math.nan, TARGETS, "weight gave nan"),
        (lambda _: "all", TARGETS, "weight gave str"),
        (lambda _: 3, TARGETS, "weight gave 3 of the batch and 6 of its 2 microbatches together"),
        (valid, TARGETS * 0 - 100, "the weight of the whole batch is 0"),
    ],
)
def test_what_is_no_weight_is_refused(weight: Any, targets: torch.Tensor, said: str) -> None:
    with pytest.raises(RunError, match=said):
        shared(weight, 2, targets)
