"""Models whose layers hand each other more than one tensor, change buffers, or use parameters now
and then; all take (rows, WIDTH)."""

from collections.abc import Callable
from typing import Any

import torch
from support.chains import WIDTH, block
from torch import Tensor, nn
from torch.nn import functional as F


class Begin(nn.Module):
    """Gives a hidden tensor, an expanded mask, a learned bias, and what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor) -> Any:
        mask = (x[:, :1] > 0).expand(-1, WIDTH)
        h = self.linear(x)
        return {"h": h, "extra": (mask, self.bias * 2, None, 3), "again": h}


class Middle(nn.Module):
    """Uses all of it, some of it twice, and hands on what it did not change."""

    def __init__(self) -> None:
        super().__init__()
        self.block = block()

    def forward(self, value: Any) -> Any:
        mask, bias, nothing, times = value["extra"]
        assert (nothing, times) == (None, 3)
        assert not mask.requires_grad
        h = self.block(value["h"]) + bias * value["again"].masked_fill(mask, 0.5)
        return {"h": h + bias, "extra": value["extra"], "again": value["h"]}


class End(nn.Module):
    """One tensor again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Any) -> Tensor:
        return self.linear(value["h"] * value["extra"][1] + value["again"])


def handed(layers: int) -> nn.Sequential:
    return nn.Sequential(Begin(), *(Middle() for _ in range(layers - 2)), End())


class Passing(nn.Module):
    """A tuple whose second tensor is used by the layer after the next only, so that some
    gradients of boundaries are missing, and whose first is whole numbers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            value = (torch.arange(WIDTH), value, torch.zeros(()))
        index, x, total = value
        y = self.linear(x)[:, index.flip(0)]
        if self.number % 3 == 1:
            total = total + y.sum().tanh()
        return index, y, total


class Ending(nn.Module):
    """What the loss takes of it."""

    def forward(self, value: Any) -> Tensor:
        return value[1] + value[2].detach()


def passing(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Passing(n) for n in range(layers - 1)), Ending())


class Statistics(nn.Module):
    """A BatchNorm, and a mean kept by hand: in place or by putting a new tensor there, and used."""

    mean: Tensor
    seen: Tensor

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=0.3)
        self.assigns = assigns
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("constant", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.dropout(self.norm(self.linear(x)).tanh(), 0.1)
        with torch.no_grad():
            if self.assigns:
                self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
                self.seen = self.seen + 1
            else:
                self.mean.mul_(0.9).add_(0.1 * y.mean(0))
                self.seen += 1
        return y * (1 + self.mean) / self.seen


def statistics(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Statistics(bool(n % 2)) for n in range(layers)))


class Experts(nn.Module):
    """Each microbatch goes to one of two experts, by its values; a third is never asked."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gate = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.experts[int(x.detach().sum() > 0)]
        return x + F.dropout(chosen(x), 0.1) * self.gate


def experts(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Experts() for _ in range(layers)))


class Adapted(nn.Module):
    """A frozen map with a small one beside it that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(F.dropout(x, 0.1)))
        return y.tanh()


def adapted(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Adapted() for _ in range(layers)))


def half_frozen(layers: int) -> nn.Sequential:
    """The first layer learns nothing, so that only some tensors need gradients."""
    made = handed(layers)
    made[0].requires_grad_(False)
    return made


class Lossy(nn.Module):
    """Ends in the loss, in something that holds it."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(WIDTH, WIDTH), wrap

    def forward(self, x: Tensor) -> Any:
        y = self.linear(x)
        return self.wrap(y.square().mean(), y)


MODELS = {
    made.__name__: made for made in (handed, passing, statistics, experts, adapted, half_frozen)
}


class Recurrent(nn.Module):
    """Has a kernel of its own, with other bits, where gradients are off."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cells(x.unflatten(0, (-1, 1)).expand(-1, 5, -1))[0][:, -1]
        return F.dropout(y, 0.1) + x


def recurrent(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Recurrent() for _ in range(layers)))


MODELS["recurrent"] = recurrent
