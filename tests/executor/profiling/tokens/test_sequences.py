"""Samples of every length are profiled at some of them: sequences made of samples, draws and bytes
that tokens alone decide, curves that fit, and losses that are sums over the tokens."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.quick import measured
from support.synthetic import time_us
from support.texts import SIZES, cost, text_task
from support.tokens import LENGTHS, WIDTH, Embedding, Mix, Pair, data, summed, task
from torch import Tensor, nn

from executor.errors import UsageError, WorkloadError
from executor.numerics import CpuSource
from executor.profiling.tokens import (
    bad_fits,
    check_asked,
    check_draws,
    check_evaluation,
    check_linear,
    check_sums,
    one,
    sizes,
    tried,
)
from executor.workload import Evaluation, build
from profiles.codec import align
from profiles.curves import draws_of
from profiles.schema import Layer, LayerCost

pytestmark = pytest.mark.usefixtures("untimed")


TASK = task(Embedding())


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=20))
def test_lengths_are_chosen_so_that_curves_can_be_fitted(lengths: list[int]) -> None:
    """Four or more, from the usual one or below up to the longest, one a multiple of 256, and none
    longer than any sample unless all are shorter than that."""
    found = sizes(replace(TASK, lengths=lengths), ())
    assert found == sorted(set(found))
    assert len(found) >= 4
    assert found[0] >= 16
    assert found[-1] % 256 == 0
    assert max(lengths) - 255 <= found[-1] <= max(256, *lengths, 256)
    assert found[-1] >= 8 * found[0] or found[0] <= 32


def test_lengths_that_are_asked_for_are_taken() -> None:
    """In ascending order."""
    assert sizes(TASK, (512, 64, 256, 100)) == [64, 100, 256, 512]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ((128, 256, 512), "--lengths lists 3 lengths; a curve needs 4"),
        ((256, 256, 512, 512), "--lengths lists 2 lengths; a curve needs 4"),
        ((100, 200, 300, 400), "--lengths 100,200,300,400: one must be a multiple of 256"),
    ],
)
def test_lengths_that_no_curve_can_be_fitted_to(asked: tuple[int, ...], text: str) -> None:
    """Too few, or none from which bytes are known."""
    with pytest.raises(UsageError, match=text):
        check_asked(asked)


@pytest.mark.parametrize(
    ("give", "text"),
    [
        (lambda n: data([n])[0], ""),
        (lambda n: data([n - (n == 2)])[0], "sample 2 has 40 tokens, lengths say 12"),
        (lambda n: None, "sample 0 is something else than a pair"),
        (
            lambda n: (data([n])[0][0].float(), data([n])[0][1]),
            r"sample 0 has tokens of float32\[\], float32\[8\], sample 0 of training of int64",
        ),
    ],
)
def test_samples_of_evaluations_are_looked_at(give: Callable[[int], Any], text: str) -> None:
    """The first, the last and the longest; they are like those of training."""
    asked: list[int] = []

    def held(samples: Sequence[int]) -> list[Any]:
        asked.extend(samples)
        return [give(n) for n in samples]

    task = replace(TASK, evaluate=Evaluation(1, held, lengths=LENGTHS[:3]))
    with pytest.raises(WorkloadError, match=text) if text else nullcontext():
        check_evaluation(task)
    assert asked == [0, 1, 2]


def test_a_sequence_is_the_longest_sample_and_what_follows() -> None:
    """Cut to so many tokens, as one sequence."""
    (longest, _), (after, _), (last, _), (first, _) = data([3, 4, 5, 0])
    tokens = torch.cat([longest, after, last, first])
    stack = one(TASK, 140).inputs
    assert torch.equal(stack[:, 0], tokens[:140])
    assert torch.equal(stack[:, 1], torch.arange(140))
    assert not stack[:, 2].any()
    assert torch.equal(one(TASK).inputs[:, 0], longest)


def test_samples_are_repeated_where_they_are_too_few() -> None:
    """A sequence longer than all samples together."""
    assert len(one(TASK, 3 * sum(LENGTHS)).inputs) == 3 * sum(LENGTHS)


def test_several_beginnings_are_tried() -> None:
    """The first one is given, the others have as many tokens of other samples."""
    first = one(TASK, 60)
    found = tried(TASK, first)
    assert found[0] is first
    assert list(found) == [0, 2, 4]
    assert torch.equal(found[4].inputs[:7, 0], data([4])[0][0])
    assert {len(batch.inputs) for batch in found.values()} == {60}


def test_data_that_does_not_keep_its_lengths_is_named() -> None:
    """By the sample and both numbers."""
    shorter = replace(TASK, lengths=[n - (n == 100) for n in LENGTHS])
    with pytest.raises(
        WorkloadError, match=r"^task toy: data\(\[3\]\): sample 3 has 100 tokens, lengths say 99$"
    ):
        one(shorter)


class Dropping(nn.Dropout):
    """Drops numbers of tokens, and then sometimes everything."""

    def forward(self, pair: Pair) -> Pair:  # type: ignore[override]
        return super().forward(pair[0]) * torch.rand(1), pair[1]


class Pairwise(nn.Module):
    """Drops pairs of tokens, one row after the other so that no memory shows it."""

    def forward(self, pair: Pair) -> Pair:
        kept = [F.dropout(torch.ones(len(pair[0])), 0.1).mean() for _ in range(len(pair[0]))]
        return pair[0] * torch.stack(kept)[:, None], pair[1]


class Chosen(nn.Module):
    """Draws for some tokens only."""

    def forward(self, pair: Pair) -> Pair:
        some = torch.rand(int((pair[0][:, 0] > 0).sum()))
        return pair[0] + 0 * some.sum(), pair[1]


def test_draws_of_a_dropout_are_on_a_line() -> None:
    """The profile has so many at each length, and what one token draws is the slope."""
    made = measured(task(Embedding(), Dropping(0.1), nn.Identity()), 1).tasks[0]
    begin = torch.manual_seed(1).get_state()
    F.dropout(torch.ones(100, WIDTH), 0.1)
    drawn = CpuSource().count(begin, torch.default_generator.get_state())
    assert drawn
    assert draws_of(made.layers[1].costs) == (1, drawn // 100)
    assert [draws_of(made.layers[n].costs) for n in (0, 2)] == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            Pairwise(),
            r"layer 1 \(Pairwise\): draws \d+ random numbers at \d+ tokens and \d+ at",
        ),
        (Chosen(), r"layer 1 \(Chosen\): draws \d+ for data\(0\) and \d+ for data\(\d\) random"),
    ],
)
def test_draws_that_tokens_do_not_decide_are_refused(layer: nn.Module, text: str) -> None:
    """By the name of the layer, with both numbers and the remedy."""
    with pytest.raises(WorkloadError, match=f"task toy: {text}.*; "):
        measured(task(Embedding(), layer, nn.Identity()), 1)


def test_a_gpu_may_draw_nothing() -> None:
    """Its generator moves on by blocks of many tokens."""
    costs = [structs.replace(cost(size, (1, 1, 1)), rng_draws=4) for size in SIZES]
    check_draws("here", costs, shared=True)
    with pytest.raises(WorkloadError, match=r"^here: draws random numbers, on a GPU"):
        check_draws("here", costs, shared=False)
    check_draws("here", [cost(size, (1, 1, 1)) for size in SIZES], shared=False)


FORMULA = (20_000, 3_000_000, 50_000)
COSTS = [cost(size, FORMULA, fixed_bytes=12_345) for size in (100, *SIZES)]


def _with(name: str, sizes: list[int]) -> list[LayerCost]:
    return [structs.replace(one, **{name: size}) for one, size in zip(COSTS, sizes, strict=True)]


def test_what_grows_with_tokens_passes() -> None:
    """Buffers in proportion, padded; beside them constants too, and the larger of two."""
    check_linear("here", COSTS)
    check_linear("here", _with("in_bytes", [align(3 * one.microbatch) for one in COSTS]))
    check_linear("here", _with("out_bytes", [0] * 5))
    peaks = [max(10**6, 500 * one.microbatch) for one in COSTS]
    check_linear("here", _with("backward_peak_bytes", peaks))


@pytest.mark.parametrize("name", ["in_bytes", "offload_bytes", "saved_bytes", "forward_peak_bytes"])
def test_what_grows_faster_is_refused_by_name(name: str) -> None:
    """A tensor of tokens by tokens, alone or with others."""
    for linear in (0, 64):
        sizes = [align(4 * one.microbatch * (one.microbatch + linear)) for one in COSTS]
        with pytest.raises(WorkloadError, match=f"^here: its {name} are .* which is not in propor"):
            check_linear("here", _with(name, sizes))


def test_buffers_that_are_as_large_at_every_length_are_refused() -> None:
    """A table that goes from layer to layer would be scaled with the tokens."""
    sizes = [align(256 * one.microbatch + 4096) for one in COSTS]
    with pytest.raises(WorkloadError, match=r"its out_bytes are \d+ at 256 tokens and \d+ at 4096"):
        check_linear("here", _with("out_bytes", sizes))


def test_too_few_lengths_that_fit_are_refused() -> None:
    """No curve goes through three, and bytes are known from a multiple of 256."""
    with pytest.raises(WorkloadError, match="only 3 lengths fit the device, up to 512; a curve"):
        check_linear("here", COSTS[:3])
    odd = [cost(size, FORMULA) for size in (10, 20, 40, 100)]
    with pytest.raises(WorkloadError, match="no multiple of 256 among the lengths fits"):
        check_linear("here", odd)


def _uneven(layer: Layer, op: str, percent: int) -> Layer:
    """The layer with an op that was measured so much too slow at one length, and too fast at the
    next."""
    costs = list(layer.costs)
    for n, known in enumerate(costs):
        us = getattr(known, op).median_us * (100 + percent * (-1) ** n) // 100
        costs[n] = structs.replace(known, **{op: time_us(us)})
    return structs.replace(layer, costs=tuple(costs))


def test_curves_that_fit_badly_are_told() -> None:
    """How many, and which is the worst."""
    good = text_task(layers=2).layers
    assert bad_fits(good) == ""
    told = bad_fits([good[0], _uneven(_uneven(good[1], "forward", 20), "backward", 40)])
    assert told.startswith("2 of 10 curves are more than 10 % off what was measured, the worst")
    assert "backward of layer 1 (Block) by 54 %" in told


class Pairs(nn.Module):
    """Hands on what every token thinks of every other one."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0] @ pair[0].T, pair[1]


class Few(nn.Module):
    """As many numbers of each token as the loss takes."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0][:, :WIDTH] * 1, pair[1]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (
            (Embedding(), Mix()),
            r"task toy: layer 1 \(Mix\): its offload_bytes are \d+ at 21 tokens",
        ),
        ((Embedding(), Pairs(), Few()), r"layer 1 \(Pairs\): its out_bytes are \d+ at 21 tokens"),
    ],
)
def test_a_model_with_masks_of_tokens_by_tokens_is_refused(
    layers: tuple[nn.Module, ...], text: str
) -> None:
    """As soon as it was measured, by the name of the layer."""
    with pytest.raises(WorkloadError, match=text):
        measured(task(*layers), 1)


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
