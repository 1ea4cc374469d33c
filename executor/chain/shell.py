"""Copies of a model's modules of which only some parameters and buffers are there."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class Ghost(nn.Parameter):
    """Stands for a parameter or buffer that a piece does not use: its shape, without memory."""

    def __new__(cls, like: Tensor) -> "Ghost":
        return torch.Tensor._make_subclass(cls, _zeros(like, like.device), False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ghost":
        return Ghost(self)


class Owner(nn.Module):
    """A module that shows as parameters and buffers only what is there, no ghosts."""

    def _named_members(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        found = super()._named_members(*args, **kwargs)
        return ((name, tensor) for name, tensor in found if not isinstance(tensor, Ghost))


def shell_of(model: nn.Module, owned: set[str]) -> nn.Module:
    """A copy of the model's modules around the owned parameters and buffers themselves and ghosts
    of all others."""
    named = (*model.named_parameters(), *model.named_buffers())
    memo: dict[int, Any] = {
        id(tensor): tensor if name in owned else Ghost(tensor) for name, tensor in named
    }
    return copy.deepcopy(model, memo)


def settle(shell: nn.Module, where: torch.device) -> None:
    """Bring ghosts to the device on which the rest computes."""
    for tensor in (*shell.parameters(), *shell.buffers()):
        if isinstance(tensor, Ghost) and tensor.device != where:
            tensor.data = _zeros(tensor, where)


def apply_to(shell: nn.Module, fn: Callable[[Any], Any], recurse: bool) -> None:
    """nn.Module._apply, which would give ghosts memory."""
    shell._apply(partial(_applied, fn), recurse)  # type: ignore[no-untyped-call]


def _applied(fn: Callable[[Any], Any], tensor: Tensor) -> Tensor:
    if isinstance(tensor, Ghost):
        return Ghost(fn(torch.zeros((), dtype=tensor.dtype)).expand(tensor.shape))
    return fn(tensor)  # type: ignore[no-any-return]


def _zeros(like: Tensor, where: torch.device) -> Tensor:
    return torch.zeros((), dtype=like.dtype, device=where).expand(like.shape)
