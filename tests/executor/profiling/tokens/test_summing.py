"""Losses that are no sum over the tokens, or that padding adds to: found before training."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.tokens import Embedding, Mix, Pair, summed, task
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.profiling.tokens import check_sums
from executor.workload import build


def _check(loss: Callable[[Pair, Tensor], Tensor], *more: nn.Module, zero: bool = False) -> None:
    asked = replace(task(Embedding(), Mix(), *more), loss=loss)
    model, _ = build(asked)
    if zero:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    check_sums(asked, model, list(model))


def mean(outputs: Pair, targets: Tensor) -> Tensor:
    return ((outputs[0] - targets) ** 2 * (targets != 0)).mean()


def counting(outputs: Pair, targets: Tensor) -> Tensor:
    return ((outputs[0] - targets) ** 2).sum()


def refusing(outputs: Pair, targets: Tensor) -> Tensor:
    if not targets.all():
        raise ValueError("a target of 0")
    return counting(outputs, targets)


def test_a_sum_without_padding_is_taken() -> None:
    """Of a model at its start, and of one whose outputs are all 0."""
    _check(summed)
    _check(summed, zero=True)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (mean, r"loss of 32 tokens is \S+, of the first 16 \S+ and of .* must be the sum"),
        (counting, r"loss of 16 tokens is \S+, and \S+ with 16 of padding; leave padding out"),
        (refusing, "task toy: loss of padding: ValueError: a target of 0"),
    ],
)
def test_any_other_loss_is_refused(loss: Callable[[Pair, Tensor], Tensor], text: str) -> None:
    """It would train something else wherever samples are packed or padded otherwise."""
    with pytest.raises(WorkloadError, match=text):
        _check(loss)


class InABatch(nn.Module):
    """Gives the tokens a batch dimension."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0][None], pair[1]


def mean_of_a_batch(outputs: Pair, targets: Tensor) -> Tensor:
    return mean((outputs[0][0], outputs[1]), targets)


def test_the_dimension_of_tokens_may_be_another_one() -> None:
    """As of outputs with a batch dimension of their own."""
    with pytest.raises(WorkloadError, match=r"loss of 32 tokens is \S+, of the first 16"):
        _check(mean_of_a_batch, InABatch())


class Batches(nn.Module):
    """Takes inputs with a batch dimension."""

    def forward(self, pair: Pair) -> Pair:
        _batch, _tokens, _width = pair[0].shape
        return pair


def test_what_the_model_raises_is_told_in_one_line() -> None:
    """With what it was called with, and what to do."""
    text = (
        r"^task toy: layer 2 \(Batches\): ValueError: not enough values .*; with lengths the model "
        r"is called with .* int64\[32, 3\], tokens first and without a batch .* or say arguments="
    )
    with pytest.raises(WorkloadError, match=text):
        _check(summed, Batches())


def test_padding_counts_where_all_outputs_begin_as_zeros() -> None:
    """A head of zeros agrees with padding's targets at first; later it would not."""
    with pytest.raises(WorkloadError, match="leave padding out of the loss"):
        _check(counting, zero=True)
