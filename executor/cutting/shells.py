"""Copies of a model's modules of which only some parameters and buffers are there."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Ghost(nn.Parameter):
    """Stands for a parameter or buffer that a slice does not use: its shape, without memory."""

    def __new__(cls, like: Tensor) -> "Ghost":
        return torch.Tensor._make_subclass(cls, _zeros(like, like.device), False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ghost":
        return Ghost(self)


class Owner(nn.Module):
    """A module that shows as parameters and buffers only what is there, no ghosts."""

    def _named_members(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        found = super()._named_members(*args, **kwargs)
        return ((name, tensor) for name, tensor in found if not isinstance(tensor, Ghost))

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        return super()._apply(partial(_applied, fn), recurse)  # type: ignore[no-untyped-call]


def shell_of(model: nn.Module, owned: Collection[int]) -> nn.Module:
    """A copy of the model's modules around the parameters and buffers with these ids and ghosts of
    all others."""
    every = (*model.parameters(), *model.buffers())
    memo: dict[int, Any] = {id(t): t if id(t) in owned else Ghost(t) for t in every}
    return copy.deepcopy(model, memo)


def settle(shell: nn.Module, where: torch.device) -> None:
    """Bring ghosts to the device on which the rest computes."""
    for tensor in (*shell.parameters(), *shell.buffers()):
        if isinstance(tensor, Ghost) and tensor.device != where:
            tensor.data = _zeros(tensor, where)


def _applied(fn: Callable[[Any], Any], tensor: Tensor) -> Tensor:
    if isinstance(tensor, Ghost):
        return Ghost(fn(torch.zeros((), dtype=tensor.dtype)).expand(tensor.shape))
    return fn(tensor)  # type: ignore[no-any-return]


def _zeros(like: Tensor, where: torch.device) -> Tensor:
    return torch.zeros((), dtype=like.dtype, device=where).expand(like.shape)


def bytes_of(module: nn.Module) -> int:
    """Bytes of a module's parameters, each once."""
    return sum(p.nbytes for p in module.parameters())


def hold(layer: nn.Module, tensors: Iterable[Tensor]) -> list[str]:
    """Let a layer hold parameters and buffers from elsewhere; the attributes that they are."""
    names = []
    for number, tensor in enumerate(tensors):
        names.append(f"held{number}")
        if isinstance(tensor, nn.Parameter):
            layer.register_parameter(names[-1], tensor)
        else:
            layer.register_buffer(names[-1], tensor, persistent=False)
    return names


def device_of(value: Any) -> torch.device:
    """The device of the first tensor; the CPU where there is none."""
    tensors = (x.device for x in tree_leaves(value) if isinstance(x, Tensor))
    return next(tensors, torch.device("cpu"))
