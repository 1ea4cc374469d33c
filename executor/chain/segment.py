"""Consecutive tensor operations of a model's graph, as a layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from executor.chain.parts import Fixed, packed, unpacked
from executor.chain.pieces import hold
from executor.chain.quiet import device_of


@dataclass(frozen=True)
class Ref:
    """The value that the operation at this place in the graph makes."""

    place: int


@dataclass(frozen=True)
class Code:
    """One operation: what it is called with holds `Ref`s. `where`: it makes tensors on a device,
    which is the one the boundary is on."""

    place: int
    function: Callable[..., Any]
    args: Any
    kwargs: Mapping[str, Any]
    where: bool
    drops: tuple[int, ...]  # values that nobody needs after it

    def __deepcopy__(self, memo: dict[int, Any]) -> "Code":
        return self


class Segment(nn.Module):
    """Consecutive operations of the graph, as a layer."""

    def __init__(
        self,
        label: str,
        codes: Sequence[Code],
        given: Sequence[int | None],
        made: Sequence[int],
        held: Mapping[int, Tensor],
        parts: Mapping[int, nn.Module],
        ends: tuple[Any, TreeSpec] | None,
        *,
        first: bool,
    ) -> None:
        """`given`: places of the values that come with the boundary, or as the batch's inputs
        (None: nobody needs it). `made`: those that are handed on. `held`: parameters, buffers and
        constants by place, `parts` graphs that operations call. `ends`: the model's output."""
        super().__init__()
        self.label = label
        self._codes, self._given, self._made = tuple(codes), tuple(given), tuple(made)
        self._ends, self._first = Fixed(ends), first
        self._names = hold(self, held)
        self._parts = nn.ModuleDict({str(place): part for place, part in parts.items()})

    def forward(self, value: Any) -> Any:
        leaves = tree_leaves(value) if self._first else unpacked(value)
        where = device_of(leaves)
        values: dict[int, Any] = {
            place: leaf
            for place, leaf in zip(self._given, leaves, strict=True)
            if place is not None
        }
        values |= {place: getattr(self, name) for place, name in self._names.items()}
        values |= {int(place): part for place, part in self._parts.items()}
        for code in self._codes:
            args, kwargs = _filled(code.args, values), _filled(code.kwargs, values)
            if code.where:
                kwargs["device"] = where
            values[code.place] = code.function(*args, **kwargs)
            for place in code.drops:
                del values[place]
        if self._ends.value is None:
            return packed([values[place] for place in self._made])
        refs, tree = self._ends.value
        return tree_unflatten(_filled(refs, values), tree)


def _filled(value: Any, values: Mapping[int, Any]) -> Any:
    """`value` with what its `Ref`s stand for."""
    if isinstance(value, Ref):
        return values[value.place]
    if isinstance(value, list | tuple):
        return [_filled(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value


def dropping(order: Sequence[tuple[int, Any, Any, Any]], kept: set[int]) -> list[Code]:
    """The operations, each with the values that are not needed after it."""
    last: dict[int, int] = {}
    for index, (place, _, args, kwargs) in enumerate(order):
        for ref in (Ref(place), *refs_in((args, kwargs))):
            last[ref.place] = index
    drops: list[list[int]] = [[] for _ in order]
    for place, index in last.items():
        if place not in kept:
            drops[index].append(place)
    return [
        Code(place, function, args, kwargs, kwargs.get("device") is not None, tuple(dropped))
        for (place, function, args, kwargs), dropped in zip(order, drops, strict=True)
    ]


def refs_in(value: Any) -> list[Ref]:
    """All `Ref`s in what an operation is called with, however deep."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [ref for item in value for ref in refs_in(item)]
    return []
