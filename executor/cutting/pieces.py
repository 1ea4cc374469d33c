"""Layers of a model that is cut at its modules: one of them with what it is called with, or several
pieces that run as one layer; and copies of its modules of which only some parameters are there."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from executor.cutting.calling import takes_inputs, through
from executor.cutting.parts import (
    Boundary,
    Const,
    Fixed,
    Fresh,
    Held,
    Inner,
    Part,
    Slot,
    Take,
    expect,
    packed,
    unpacked,
)
from executor.cutting.record import intercepted, plainly

K = TypeVar("K")


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


class Step(nn.Module):
    """One of the model's modules, called once, with what goes past it."""

    def __init__(
        self,
        label: str,
        module: nn.Module,
        parts: tuple[Part, ...],
        tree: TreeSpec,
        made: tuple[TreeSpec, Mapping[int, Any]],
        out: tuple[Take | Inner | Slot, ...],
        held: Mapping[str, Tensor],
        inside: Sequence[nn.Module] = (),
    ) -> None:
        """`parts`, `tree`: its arguments. `made`: how its outputs are structured, and what of
        them is no tensor. `out`: the boundary after it, from leaves of arguments that it may have
        changed (Slot), of the boundary before it (Slot) and of outputs (Take), its own or those
        of modules `inside` of it (Inner). `held`: parameters and buffers it uses that are not
        inside the module."""
        super().__init__()
        self.label = label
        self.module = module
        self._parts, self._out = parts, out
        paths = {inner: path for path, inner in module.named_modules()}
        self._inside = [paths[inner] for inner in inside]
        self._tree, self._made = Fixed(tree), Fixed(made)
        self._held = hold(self, held)

    def forward(self, value: Boundary) -> Boundary:
        values = list(unpacked(value))
        for part in self._parts:
            if isinstance(part, Slot) and part.clone:
                values[part.place] = values[part.place].clone()
        given = [self._leaf(part, values) for part in self._parts]
        args, kwargs = tree_unflatten(given, self._tree.value)
        with self._looked_into() as inner:
            leaves, tree = tree_flatten(self.module(*args, **kwargs))
        expect(self.label, "returned", leaves, tree, *self._made.value)
        ends: list[Tensor] = []
        for end in self._out:
            if isinstance(end, Slot):
                ends.append(values[end.place])
            else:
                ends.append((inner[end.number] if isinstance(end, Inner) else leaves)[end.leaf])
        return packed(ends)

    @contextmanager
    def _looked_into(self) -> Iterator[dict[int, list[Any]]]:
        """Note what the modules inside return, while it is active, as leaves."""
        found: dict[int, list[Any]] = {}
        if not self._inside:
            yield found
            return

        def seen(number: int, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = plainly(module, *args, **kwargs)
            found[number] = tree_leaves(result)
            return result

        modules = map(self.module.get_submodule, self._inside)
        with intercepted({m: partial(seen, number, m) for number, m in enumerate(modules)}):
            yield found

    def _leaf(self, part: Part, values: Sequence[Tensor]) -> Any:
        if isinstance(part, Slot):
            return values[part.place]
        if isinstance(part, Held):
            return getattr(self, self._held[part.name])
        if isinstance(part, Fresh):
            return part.made()
        assert isinstance(part, Const)
        return part.value


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


def hold(layer: nn.Module, tensors: Mapping[K, Tensor]) -> dict[K, str]:
    """Let a layer hold parameters and buffers from elsewhere; the attributes that they are."""
    names = {key: f"held{number}" for number, key in enumerate(tensors)}
    for key, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            layer.register_parameter(names[key], tensor)
        else:
            layer.register_buffer(names[key], tensor, persistent=False)
    return names
