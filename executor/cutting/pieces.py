"""Layers of a model that is cut at its modules: one of them with what it is called with, or several
pieces that run as one layer; and copies of its modules of which only some parameters are there."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from executor.cutting.calling import takes_inputs, through
from executor.cutting.parts import Boundary, Key, Sources, StepScript, packed, unpacked
from executor.cutting.record import intercepted, plainly


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

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        return super()._apply(partial(_applied, fn), recurse)  # type: ignore[no-untyped-call]


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


def _applied(fn: Callable[[Any], Any], tensor: Tensor) -> Tensor:
    if isinstance(tensor, Ghost):
        return Ghost(fn(torch.zeros((), dtype=tensor.dtype)).expand(tensor.shape))
    return fn(tensor)  # type: ignore[no-any-return]


def _zeros(like: Tensor, where: torch.device) -> Tensor:
    return torch.zeros((), dtype=like.dtype, device=where).expand(like.shape)


class Step(nn.Module):
    """One of the model's modules, called once, with what goes past it."""

    def __init__(
        self, module: nn.Module, script: StepScript, foreign: Mapping[str, Tensor]
    ) -> None:
        """`foreign`: parameters and buffers that it uses and that are not inside the module."""
        super().__init__()
        self.label = script.label
        self.module = module
        self._script = script
        self._held = dict(zip(foreign, hold(self, foreign.values()), strict=True))

    def forward(self, value: Boundary) -> Boundary:
        script = self._script
        values: dict[Key, Any] = dict(zip(script.before, unpacked(value), strict=True))
        own = {**values, **{key: values[key].clone() for key in script.clones}}
        sources = Sources(own, lambda name: getattr(self, self._held[name]))
        given = [sources.leaf(part) for part in script.parts]
        args, kwargs = tree_unflatten(given, script.tree)
        with intercepted(self._looking(values)):
            result = self.module(*args, **kwargs)
        made = script.made.leaves(f"{self.label} returned", result)
        values |= script.wanted(script.number, made=made, left=given)
        return packed([values[key] for key in script.after])

    def _looking(self, values: dict[Key, Any]) -> dict[nn.Module, Callable[..., Any]]:
        """Instead of the calls of modules inside: what they return is noted among the values."""

        def seen(number: int, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = plainly(module, *args, **kwargs)
            values.update(self._script.wanted(number, made=tree_leaves(result)))
            return result

        inside = [(number, self.module.get_submodule(p)) for p, number in self._script.inside]
        return {module: partial(seen, number, module) for number, module in inside}


class Joined(Owner):
    """Pieces that run as one layer."""

    def __init__(self, pieces: Sequence[nn.Module]) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)
        named = sorted(pieces, key=lambda p: (not isinstance(p, Step), -bytes_of(p)))
        self.label = str(named[0].label)
        self.takes_inputs = takes_inputs(pieces[-1])

    def forward(self, value: Any, inputs: Any = None) -> Any:
        for piece in self.pieces:
            value = through(piece, value, inputs)
        return value


def bytes_of(module: nn.Module) -> int:
    """Bytes of a module's parameters, each once."""
    return sum(p.nbytes for p in module.parameters())


def joined(pieces: Sequence[nn.Module]) -> list[nn.Module]:
    """Pieces without parameters run with the one after them, the last with the one before it."""
    groups: list[list[nn.Module]] = []
    waiting: list[nn.Module] = []
    for piece in pieces:
        waiting.append(piece)
        if any(True for _ in piece.parameters()):
            groups.append(waiting)
            waiting = []
    if groups:
        groups[-1] += waiting
    return [group[0] if len(group) == 1 else Joined(group) for group in groups]


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
