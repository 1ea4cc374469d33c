"""Sequences that see each other within a microbatch: found, with the layer to blame."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.quick import measured
from support.tokens import LENGTHS, WIDTH, Embedding, Mix, Pair, data, summed, task
from torch import Tensor, nn

from executor.profiling.tokens import mixes
from executor.workload import Evaluation, build
from executor.workloads.documents import Model, next_byte_loss

pytestmark = pytest.mark.usefixtures("untimed")


def _why(*layers: nn.Module, **more: Any) -> str:
    asked = replace(task(*layers), **more)
    model, _ = build(asked)
    return mixes(asked, model, list(model), max(LENGTHS))


class Causal(nn.Module):
    """Tokens see all before them, also those of an earlier sequence; later ones they do not."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0].cumsum(0), pair[1]


class Batched(nn.BatchNorm1d):
    """Tokens see the mean and the variance of all."""

    def forward(self, pair: Pair) -> Pair:  # type: ignore[override]
        return super().forward(pair[0]), pair[1]


class First(nn.Module):
    """The vectors alone."""

    def forward(self, pair: Pair) -> Tensor:
        return pair[0]


class Reaching(nn.Module):
    """Tokens see one that is this far before them."""

    def __init__(self, far: int) -> None:
        super().__init__()
        self.far = far

    def forward(self, pair: Pair) -> Pair:
        return pair[0] + F.pad(pair[0], (0, 0, self.far, 0))[: len(pair[0])], pair[1]


class Windows(nn.Module):
    """Tokens see all of their window of eight, which begins where the microbatch says."""

    def forward(self, pair: Pair) -> Pair:
        window = torch.arange(len(pair[0])) // 8
        return pair[0] + (window[:, None] == window).float() @ pair[0], pair[1]


class Pooled(nn.Module):
    """One vector, of all tokens."""

    def forward(self, pair: Pair) -> Pair:
        return pair[0].sum(0).square(), pair[1]


class Judged(nn.Module):
    """Sees all tokens in eval mode."""

    def forward(self, pair: Pair) -> Pair:
        return pair if self.training else (pair[0].cumsum(0), pair[1])


class OneOnly(nn.Module):
    """Cannot take two sequences."""

    def forward(self, pair: Pair) -> Pair:
        if pair[1].any():
            raise ValueError("one sequence at a time")
        return pair


def still(layer: Mix) -> Mix:
    """A layer that gives nothing at its start."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def of_all(outputs: Pair, targets: Tensor) -> Tensor:
    return outputs[0].sum() + 0 * targets.sum()


@pytest.mark.parametrize(
    "layers",
    [
        (Embedding(), Mix(), Mix()),
        (Embedding(), Mix(dropout=0.5), still(Mix())),
    ],
)
def test_sequences_that_attend_to_themselves_may_be_packed(layers: tuple[nn.Module, ...]) -> None:
    """Also where random numbers make one alone another."""
    assert _why(*layers) == ""


@pytest.mark.parametrize(
    ("layers", "more", "text"),
    [
        (
            (Embedding(), Mix(), Mix(apart=False)),
            {},
            r"layer 2 \(Mix\): a sequence is off by 0",
        ),
        ((Embedding(), Causal(), Mix()), {}, r"layer 1 \(Causal\): a sequence is off by \d"),
        ((Embedding(), Batched(WIDTH)), {}, r"layer 1 \(Batched\): a sequence is off by \d"),
        ((Embedding(absolute=True), Mix()), {}, r"layer 0 \(Embedding\): a sequence is off by \d"),
        ((Embedding(), OneOnly()), {}, "two sequences in a microbatch: ValueError: one sequence"),
        ((Embedding(), Reaching(48)), {}, r"layer 1 \(Reaching\): a sequence is off"),
        ((Embedding(), Windows()), {}, r"layer 1 \(Windows\): a sequence is off"),
        ((Embedding(), still(Mix(apart=False))), {}, r"layer 1 \(Mix\): a sequence is off"),
        (
            (Embedding(), Pooled()),
            {"loss": of_all},
            r"the loss of sequences is \S+ in one microbatch, \S+ alone",
        ),
        (
            (Embedding(), Judged()),
            {"evaluate": Evaluation(1, data, lengths=LENGTHS)},
            r"layer 1 \(Judged\): a sequence is off by \S+ of its size .* alone, in eval mode",
        ),
        (
            (Embedding(), Mix(), nn.Sequential(First(), nn.RReLU())),
            {"loss": lambda y, targets: summed((y, y), targets)},
            r"layer 2 \(Sequential\): a sequence alone draws other .*, by rrelu_with_noise",
        ),
    ],
)
def test_a_layer_that_mixes_sequences_is_named(
    layers: tuple[nn.Module, ...], more: dict[str, Any], text: str
) -> None:
    """With the figure by which a sequence is another one than alone."""
    found = _why(*layers, **more)
    assert re.match(text, found), found


class AsWritten(Model):
    """A GPT whose positions are those in the microbatch, with dropout."""

    def forward(self, tokens: Tensor, positions: Tensor, sequences: Tensor) -> Tensor:
        x = F.dropout(self.embedding(tokens, torch.arange(len(tokens))), 0.1, self.training)
        for block in self.blocks:
            x = block(x, sequences)
        return self.head(x)


def test_a_gpt_that_counts_positions_itself_is_not_packed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever it drops; the profile says so in one line, with the remedy."""
    asked = replace(
        task(),
        model=AsWritten(width=8, blocks=1, heads=2, longest=1000),
        data=lambda samples: [(x, (x + 1) % 50) for x, _ in data(samples)],
        loss=next_byte_loss,
        arguments=None,
    )
    (made,) = measured(asked, 1).tasks
    assert made.lengths.why_not.startswith("layer 0 (before blocks.0): a sequence is off by ")
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "own; layer 0" in line)
    assert "take positions as they are given (no torch.arange)" in said


def test_a_model_is_afterwards_as_before() -> None:
    """Parameters, buffers, modes and random numbers are those of before."""
    asked = replace(
        task(Embedding(), still(Mix(dropout=0.1)), nn.Sequential(First(), nn.BatchNorm1d(WIDTH))),
        evaluate=Evaluation(1, data, lengths=LENGTHS),
    )
    model, _ = build(asked)
    state = torch.default_generator.get_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mixes(asked, model, list(model), max(LENGTHS))
    assert torch.equal(state, torch.default_generator.get_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_the_profile_of_a_model_that_mixes_goes_on_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Why no two sequences may share a microbatch stands beside its times. What
    buffers change is kept for as many microbatches as a step has samples."""
    (made,) = measured(task(Embedding(), Causal(), Batched(WIDTH)), 1).tasks
    assert made.lengths.why_not.startswith("layer 1 (Causal): a sequence is off by ")
    assert made.layers[2].buffer_bytes == (1 + 2) * 3 * 256
    said = "note: task toy: each sequence has a microbatch of its own; layer 1 (Causal)"
    assert said in capsys.readouterr().err
