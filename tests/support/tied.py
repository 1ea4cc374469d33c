"""Small models whose layers share a weight across the whole chain, as workloads."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload.task import Evaluation, Task
from profiles.schema import Precision

BATCH, LENGTH, WORDS, WIDTH = 6, 4, 48, 16


class Embedding(nn.Module):
    """Words and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x) + self.places.weight


class Head(nn.Module):
    """Scores of all words by the embedding's own weight."""

    def __init__(self, words: nn.Parameter) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.weight = words

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.weight)


class Memory(nn.Module):
    """Looks words up by their scores: uses the weight twice."""

    def __init__(self, words: nn.Parameter) -> None:
        super().__init__()
        self.weight = words

    def forward(self, x: Tensor) -> Tensor:
        return x + F.linear(x, self.weight).softmax(-1) @ self.weight


class Idle(nn.Module):
    """Has the weight and does not use it."""

    def __init__(self, words: nn.Parameter) -> None:
        super().__init__()
        self.weight = words

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


def block() -> nn.Sequential:
    wide = 2 * WIDTH
    inner = nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH)
    return nn.Sequential(*inner, nn.Dropout(0.1))


def gpt() -> nn.Sequential:
    """Layers 0 and 4."""
    first = Embedding()
    return nn.Sequential(first, block(), block(), block(), Head(first.words.weight))


def several() -> nn.Sequential:
    """Layers 0, 2 and 4."""
    first = Embedding()
    weight = first.words.weight
    return nn.Sequential(first, block(), Memory(weight), block(), Head(weight))


def idle() -> nn.Sequential:
    """Layers 0, 2 and 4, one of which does nothing with it."""
    first = Embedding()
    weight = first.words.weight
    return nn.Sequential(first, block(), Idle(weight), block(), Head(weight))


def bare() -> nn.Sequential:
    """Layers 0 and 4, the last of which has nothing of its own."""
    first = nn.Embedding(WORDS, WIDTH)
    last = nn.Linear(WIDTH, WORDS, bias=False)
    last.weight = first.weight
    return nn.Sequential(first, block(), block(), block(), last)


class Written(nn.Module):
    """An embedding and a head around a list of blocks, as models are written. `around`: the model's
    own code adds what goes into a block to what comes out, so that its layers are its graph's."""

    def __init__(self, around: bool) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList([block() for _ in range(3)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.words(x)
        for each in self.blocks:
            y = y + each(y) if self.around else each(y)
        return self.head(self.norm(y))


def batches(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def _tasks(
    model: Callable[[], nn.Module], precision: Precision = "fp32", clip: float | None = None
) -> list[Task]:
    optimizer = partial(AdamW, lr=1e-2, fused=True)
    return [Task("t", model, batches, loss, optimizer, 3, seed=3, precision=precision, clip=clip)]


plain = partial(_tasks, gpt)
three = partial(_tasks, several)
unused = partial(_tasks, idle)
alone = partial(_tasks, bare)
clipped = partial(_tasks, several, clip=0.1)
masters = partial(_tasks, gpt, "bf16", 0.1)
autocast = partial(_tasks, gpt, "bf16-autocast")
scaled = partial(_tasks, gpt, "fp16-autocast", 0.1)
modules = partial(_tasks, partial(Written, around=False), "bf16-autocast")
graph = partial(_tasks, partial(Written, around=True), "bf16-autocast")
twice_cast = partial(_tasks, several, "bf16-autocast")


def judged() -> list[Task]:
    (task,) = plain()
    return [replace(task, evaluate=Evaluation(3, batches, 1))]
