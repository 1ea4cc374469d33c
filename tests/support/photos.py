"""A dataset as people have it, with augmentation, and a small ResNet that trains on it."""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from executor.workload import loader
from executor.workload.task import Task

SIZE, CLASSES = 8, 4


class Photos(Dataset[tuple[Tensor, Tensor]]):
    """Random crops, flips and brightness, by torch's, Python's and numpy's generators. Sample
    `broken` cannot be read, `late` seconds pass for each, and each is noted in the file `seen`."""

    def __init__(
        self, count: int, broken: int = -1, late: float = 0, seen: Path | None = None
    ) -> None:
        self.count, self.broken, self.late, self.seen = count, broken, late, seen

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number == self.broken:
            raise ValueError("not a picture")
        time.sleep(self.late)
        if self.seen:
            with self.seen.open("a") as file:
                file.write(f"{number}\n")
        picture, label = picture_of(number)
        down, right = torch.randint(5, (2,)).tolist()
        picture = F.pad(picture, (2, 2, 2, 2))[:, down : down + SIZE, right : right + SIZE]
        picture = picture.flip(2) if random.random() < 0.5 else picture
        return picture * float(np.random.uniform(0.8, 1.2)), label  # noqa: NPY002


class Plain(Photos):
    """The same without augmentation, as dicts."""

    def __getitem__(self, number: int) -> Any:
        picture, label = picture_of(number)
        return {"picture": picture, "label": label}


def picture_of(number: int) -> tuple[Tensor, Tensor]:
    """A picture that looks like its class."""
    own, label = torch.Generator().manual_seed(number), number % CLASSES
    mean = torch.linspace(-1, 1, CLASSES)[label]
    return torch.randn(3, SIZE, SIZE, generator=own) + mean, torch.tensor(label)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.first, self.second = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(self.two(F.relu(self.first(self.one(x))))))


def resnet() -> nn.Module:
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8), *ends)


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    """For each sample, whether its class was found."""
    return outputs.argmax(1) == targets


def task(name: str, dataset: Any, steps: int, workers: int = 0, **more: Any) -> Task:
    """The ResNet on batches of 4 of the dataset."""
    return Task(
        name=name,
        model=resnet,
        data=loader(dataset, 4, seed=1, workers=workers),
        loss=F.cross_entropy,
        optimizer=lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9),
        steps=steps,
        **more,
    )
