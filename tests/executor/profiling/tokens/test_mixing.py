"""Sequences that see each other within a microbatch: found, with the layer to blame."""

import re

import pytest
import torch
from support.quick import measured
from support.tokens import WIDTH, Embedding, Mix, Pair, task
from torch import nn

from executor.profiling.tokens import mixes
from executor.workload import build

pytestmark = pytest.mark.usefixtures("untimed")


def _why(*layers: nn.Module) -> str:
    asked = task(*layers)
    model, _ = build(asked)
    return mixes(asked, model, list(model))


class Causal(nn.Module):
    """Tokens see all before them, also those of an earlier sequence; later ones they do not."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0].cumsum(0), pair[1]


class Backwards(nn.Module):
    """Tokens see all behind them, also those of a later sequence."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0].flip(0).cumsum(0).flip(0), pair[1]


class Batched(nn.BatchNorm1d):
    """Tokens see the mean and the variance of all."""

    def forward(self, pair: Pair) -> Pair:  # type: ignore[override]
        return super().forward(pair[0]), pair[1]


class OneOnly(nn.Module):
    """Cannot take two sequences."""

    def forward(self, pair: Pair) -> Pair:
        if pair[1].any():
            raise ValueError("one sequence at a time")
        return pair


@pytest.mark.parametrize(
    "layers",
    [
        (Embedding(), Mix(), Mix()),
        (Embedding(), Mix(dropout=0.5)),
    ],
)
def test_sequences_that_attend_to_themselves_may_be_packed(layers: tuple[nn.Module, ...]) -> None:
    """Also where random numbers make one alone another."""
    assert _why(*layers) == ""


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (
            (Embedding(), Mix(), Mix(apart=False)),
            r"layer 2 \(Mix\): a sequence changes by 0\.\d+ of",
        ),
        ((Embedding(), Causal(), Mix()), r"layer 1 \(Causal\): a sequence changes by \d"),
        ((Embedding(), Backwards()), r"layer 1 \(Backwards\): a sequence changes by \d"),
        ((Embedding(), Batched(WIDTH)), r"layer 1 \(Batched\): a sequence changes"),
        (
            (Embedding(absolute=True), Mix()),
            r"layer 0 \(Embedding\): a sequence is off by [\d.]+ of its size from what it is with",
        ),
        ((Embedding(), OneOnly()), "two sequences in a microbatch: ValueError: one sequence at"),
    ],
)
def test_a_layer_that_mixes_sequences_is_named(layers: tuple[nn.Module, ...], text: str) -> None:
    """With the figure by which the other sequence changes it."""
    found = _why(*layers)
    assert re.match(text, found), found


def test_a_model_is_afterwards_as_before() -> None:
    """Buffers and random numbers are those of before."""
    asked = task(Embedding(), Batched(WIDTH))
    model, _ = build(asked)
    state, mean = torch.default_generator.get_state(), model[1].running_mean.clone()
    mixes(asked, model, list(model))
    assert torch.equal(state, torch.default_generator.get_state())
    assert torch.equal(mean, model[1].running_mean)


def test_the_profile_of_a_model_that_mixes_goes_on_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its curves are there; why no two sequences may share a microbatch stands beside them. What
    buffers change is kept for as many microbatches as a step has samples."""
    (made,) = measured(task(Embedding(), Causal(), Batched(WIDTH)), 1).tasks
    assert made.lengths is not None
    assert made.lengths.why_not.startswith("layer 1 (Causal): a sequence changes by ")
    assert all(layer.curves for layer in made.layers)
    assert made.layers[2].buffer_bytes == (1 + 2) * 3 * 256
    said = "note: task toy: each sequence has a microbatch of its own; layer 1 (Causal)"
    assert said in capsys.readouterr().err
