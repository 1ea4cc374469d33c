"""`profile --explain`: how layers were found and what is in them, without measuring."""

from pathlib import Path

import pytest
import torch
from support.architectures import architecture
from support.cli import executor_cli, nothing_written, refused, succeeded
from torch import Tensor, nn
from torch.optim import SGD

from executor.workload.task import Task

pytestmark = pytest.mark.filterwarnings("default")  # those of torch.export and transformers


def some() -> list[Task]:
    return [architecture("mlp-frozen"), architecture("qwen3-tied"), architecture("resnet18")]


def test_explaining_tells_layers_ties_frozen_and_unused_parameters_and_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs neither a device nor an output, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    with nothing_written():
        told = succeeded(executor_cli("profile", f"{__file__}:some", "--explain")).out
    frozen, tied, changing = told.split("\n\n")
    assert frozen.startswith("mlp-frozen: 6 layers; the model's lists of modules")
    assert "sequential: the model is a Frozen, not an nn.Sequential" in frozen
    assert "float32[2, 32]" in frozen
    assert "frozen: first.weight, first.bias, blocks.1.0.weight, blocks.1.0.bias" in frozen
    assert "in no layer, never learn: unused.weight, unused.bias" in frozen
    assert "layers 0, 4 share parameters" in tied
    assert "model.layers.1 (Qwen3DecoderLayer)" in tied
    assert "buffers that a forward changes: bn1.running_mean, bn1.running_var" in changing


class Masked(nn.Module):
    """Tied ends that use one mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head.weight = self.first.weight
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * self.mask
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.mask


def masked() -> list[Task]:
    loss = nn.functional.mse_loss
    return [Task("masked", Masked, data, loss, lambda p: SGD(p, lr=0.1), steps=2)]


def test_ties_that_must_not_be_cut_are_told_with_their_reason() -> None:
    """A buffer that tied layers share keeps them in one shard."""
    told = succeeded(executor_cli("profile", f"{__file__}:masked", "--explain")).out
    assert "share parameters; they and all between them stay in one shard, for they share a" in told


def data(step: int) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 4), torch.ones(2, 4)


class Frozen(nn.Sequential):
    """Its statistics stay as they are."""

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self[1].eval()
        return self


def statistics() -> list[Task]:
    def make() -> nn.Module:
        return Frozen(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4))

    return [Task("a", make, data, nn.functional.mse_loss, SGD, 1)]


def test_statistics_in_eval_mode_are_no_buffers_that_change() -> None:
    """A forward leaves those of a frozen BatchNorm alone."""
    told = succeeded(executor_cli("profile", f"{__file__}:statistics", "--explain")).out
    assert "changes: 2.running_mean" in told
    assert "1.running_mean" not in told


def test_profiling_still_needs_an_output(tmp_path: Path) -> None:
    """Without --explain the missing option is named."""
    refused(executor_cli("profile", f"{__file__}:some", "--device-memory", "1MiB"), 2, "add -o")
