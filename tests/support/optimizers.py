"""An optimizer that keeps what torch's own do not, and options of parameters by their names."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class Odd(Optimizer):
    """Keeps all sorts of things, some made late, some made anew, some given up again."""

    def __init__(self, params: Iterable[Any], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "rounds": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["rounds"] += 1
            for p in (p for p in group["params"] if p.grad is not None):
                self._one(p, group["lr"] / group["rounds"])

    def _one(self, p: nn.Parameter, lr: float) -> None:
        assert p.grad is not None
        s = self.state[p]
        if not s:
            s |= {"count": torch.zeros((), dtype=torch.int64), "scale": 1.0, "last": None}
            s |= {"row": torch.zeros(p.shape[0]), "seen": torch.zeros(p.shape, dtype=torch.bool)}
            s |= {"hits": torch.zeros(3, dtype=torch.int64), "pair": [torch.zeros(2), 0.5]}
        s["count"] += 1
        s["scale"] *= 0.9
        s["row"].mul_(0.5).add_(p.grad.flatten(1).sum(1) if p.ndim > 1 else p.grad)
        s["seen"] = s["seen"] | (p.grad > 0)  # made anew
        s["hits"][int(s["count"]) % 3] += 1
        s["pair"][0].add_(s["row"][:1])
        if int(s["count"]) == 2:
            s["late"] = torch.full_like(p, 0.5)
        row = s["row"].view(-1, *(1 for _ in p.shape[1:]))
        change = p.grad + 0.1 * row * s["scale"] + 0.01 * s["seen"] + 0.1 * s["pair"][0][0]
        if s["last"] is not None:
            change = change + s["last"] + s["late"] * s["hits"][0]
        s["last"] = None if int(s["count"]) % 2 else change * 0.1
        p.sub_(change, alpha=lr)


def by_kind(name: str, parameter: nn.Parameter) -> Mapping[str, Any]:
    """No decay for biases, and a rate of its own for the first layer."""
    options = {"weight_decay": 0.0 if parameter.ndim < 2 else 0.3}
    return options | ({"lr": 3e-3} if name.startswith("0.") else {})
