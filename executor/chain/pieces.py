"""Layers of a model that is cut at its modules: one of them with what it is called with, or several
pieces that run as one layer."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from executor.chain.called import takes_inputs, through
from executor.chain.constants import expect
from executor.chain.listed import bytes_of
from executor.chain.parts import Boundary, Const, Fixed, Held, Part, Slot, Take, packed, unpacked
from executor.chain.shell import Owner

K = TypeVar("K")


class Step(nn.Module):
    """One of the model's modules, called once, with what goes past it."""

    def __init__(
        self,
        label: str,
        module: nn.Module,
        parts: tuple[Part, ...],
        tree: TreeSpec,
        made: tuple[TreeSpec, Mapping[int, Any]],
        out: tuple[Take | Slot, ...],
        held: Mapping[str, Tensor],
    ) -> None:
        """`parts`, `tree`: its arguments. `made`: how its outputs are structured, and what of
        them is no tensor. `out`: the boundary after it, from leaves of arguments that it may have
        changed (Slot), of the boundary before it (Slot) and of outputs (Take). `held`: parameters
        and buffers it uses that are not inside the module."""
        super().__init__()
        self.label = label
        self.module = module
        self._parts, self._out = parts, out
        self._tree, self._made = Fixed(tree), Fixed(made)
        self._held = hold(self, held)

    def forward(self, value: Boundary) -> Boundary:
        values = list(unpacked(value))
        for part in self._parts:
            if isinstance(part, Slot) and part.clone:
                values[part.place] = values[part.place].clone()
        given = [self._leaf(part, values) for part in self._parts]
        args, kwargs = tree_unflatten(given, self._tree.value)
        leaves, tree = tree_flatten(self.module(*args, **kwargs))
        expect(self.label, "returned", leaves, tree, *self._made.value)
        return packed(
            [values[o.place] if isinstance(o, Slot) else leaves[o.leaf] for o in self._out]
        )

    def _leaf(self, part: Part, values: Sequence[Tensor]) -> Any:
        if isinstance(part, Slot):
            return values[part.place]
        if isinstance(part, Held):
            return getattr(self, self._held[part.name])
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
