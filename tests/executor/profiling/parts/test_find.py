"""What parts of a batch are to the whole: found by running both, whatever its first ones hold."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.lab import task as lab_task
from torch import Tensor, nn
from torch.nn import functional as F

from executor.errors import WorkloadError
from executor.profiling.parts import Probe, find_parts
from executor.workload import Task, batch_of, build
from profiles.schema import Counts, Parts

WIDTH, CLASSES = 8, 5
Data = Callable[[int], Any]


def classes(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    rows = torch.randn(8, WIDTH, generator=generator)
    return rows, torch.randint(CLASSES, (8,), generator=generator)


def same(step: int) -> tuple[Tensor, Tensor]:
    return classes(step)[:1] * 2


def chain(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *inner, nn.Linear(WIDTH, CLASSES))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets[:, :CLASSES]).square().mean()


def masked_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """Over the targets that are above 1, of which there are now more, now fewer."""
    counted = targets > 1
    return (F.cross_entropy(outputs, targets, reduction="none") * counted).sum() / counted.sum()


class Noise(nn.Module):
    """Learns to tell the noise that it added, as diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) * torch.rand(len(x), 1)
        return F.mse_loss(self.layer(x + noise), noise)


class Shuffled(nn.Module):
    """Draws numbers of no sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.rand(len(x) + 1).sum()


def found(model: Callable[[], nn.Module], data: Data, loss: Any, **more: Any) -> Parts:
    task: Task = replace(lab_task(model, data, 3), loss=loss, **more)
    made, _ = build(task)
    state = {name: value.clone() for name, value in made.state_dict().items()}
    parts = find_parts(Probe(task, made), [batch_of(task, n) for n in range(3)])
    assert all(torch.equal(value, state[name]) for name, value in made.state_dict().items())
    assert all(p.grad is None for p in made.parameters())
    return parts


COUNTED = Counts(1, shifted=False, ignored=-100)
OTHERS = "targets other than"
BEYOND = nn.CrossEntropyLoss(ignore_index=9, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("model", "data", "loss", "parts"),
    [
        (partial(chain, nn.Dropout(0.5)), same, squares, Parts()),
        (chain, classes, F.cross_entropy, Parts("weighted", f"{OTHERS} -100", COUNTED)),
        (chain, classes, BEYOND, Parts("weighted", f"{OTHERS} 9", Counts(1, False, 9))),
        (partial(chain, nn.BatchNorm1d(WIDTH)), classes, F.cross_entropy,
         Parts("whole", "BatchNorm1d 1", COUNTED)),
        (partial(chain, nn.GroupNorm(2, WIDTH)), classes, F.cross_entropy,
         Parts("weighted", f"{OTHERS} -100", COUNTED)),
        (chain, classes, masked_mean, Parts("whole", "loss")),
        (chain, classes, partial(F.cross_entropy, reduction="sum"), Parts("whole", "loss")),
        (Noise, lambda step: classes(step)[0], None, Parts()),
        (Shuffled, classes, F.cross_entropy, Parts(why="draws numbers of no samples")),
    ],
    ids=["mean", "cross-entropy", "ignored", "batch norm", "group norm", "mask", "sum", "noise",
         "other draws"],
)  # fmt: skip
def test_kinds(model: Any, data: Data, loss: Any, parts: Parts) -> None:
    """With dropout and noise, and targets of which none is left out in the batches that are tried;
    nothing of the model is another one afterwards."""
    assert found(model, data, loss) == parts


def test_a_weight_of_the_task() -> None:
    """Is taken where it fits the loss, and refused where it does not."""
    count = found(chain, classes, masked_mean, weight=lambda batch: (batch[1] > 1).sum())
    assert count == Parts("weighted", "Task.weight")
    with pytest.raises(WorkloadError, match="its loss is the mean over samples, and `weight`"):
        found(chain, same, squares,
              weight=lambda batch: (batch[1] > 1).sum())  # fmt: skip
