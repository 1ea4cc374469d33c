"""Values between layers: any pytree, kept in one flat as its tensors one after another.

    value     (hidden, None, {"mask": mask, "bias": bias}, mask)
    tensors   hidden, mask, bias        each once, whoever else shows it
    layout    how they lie in a flat, which of them need gradients, and all the rest of the value

A tensor that needs no gradient must get none: asking for one may choose other kernels.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from executor.errors import MismatchError, WorkloadError
from executor.numerics.flat import Spec, expanded_spec_of, put, views
from executor.numerics.gradients import Beginning
from profiles.codec import align

# Types of a value's constants, which are equal for all microbatches and have no parts.
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum),
)

Grads = tuple[tuple[int, Spec], ...]  # tensors of a value that have gradients, in their order


class TensorPlace(NamedTuple):
    """A leaf that is the value's tensor of this number."""

    number: int


@dataclass(frozen=True)
class Layout:
    """The layout of a value in a flat. `tree` and `leaves` are None for one that is one tensor.

    A leaf is the place of its tensor, or a constant with its type (True is no 1). `needs`: which
    tensors need gradients.
    """

    specs: tuple[Spec, ...]
    needs: tuple[bool, ...]
    leaves: tuple[TensorPlace | tuple[type, Any], ...] | None = None
    tree: TreeSpec | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the tensors, each padded."""
        return sum(align(spec.bytes) for spec in self.specs)

    @property
    def grad_bytes(self) -> int:
        """The most that their gradients have, which may be expanded where these are not."""
        pairs = zip(self.specs, self.needs, strict=True)
        return sum(
            align(spec.dtype.itemsize * prod(spec.shape)) for spec, needed in pairs if needed
        )

    @property
    def boundary_bytes(self) -> int:
        """Bytes of a buffer that holds either."""
        return max(self.bytes, self.grad_bytes)

    def write(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors into `flat` (uint8)."""
        for place, tensor in zip(self.read(flat), tensors, strict=True):
            put(place, tensor)

    def write_boundary(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors into `flat`, which is to hold their gradients too."""
        if self.boundary_bytes > len(flat):
            raise MismatchError(
                f"the boundary behind it has {self.boundary_bytes} bytes, the plan says "
                f"{len(flat)}; profile and build again"
            )
        self.write(flat, tensors)

    def read(self, flat: Tensor) -> list[Tensor]:
        """The tensors in `flat` (uint8), with version counters of their own."""
        return views(flat, self.specs)

    def held(self, flat: Tensor) -> "Value":
        """The value in `flat` (uint8)."""
        return Value(self, self.read(flat))

    def whole(self, tensors: Sequence[Tensor]) -> Any:
        """The value that these tensors are those of."""
        if self.leaves is None or self.tree is None:
            return tensors[0]
        leaves = [tensors[i.number] if isinstance(i, TensorPlace) else i[1] for i in self.leaves]
        return tree_unflatten(leaves, self.tree)

    def like(self, other: "Layout") -> "Layout":
        """This one, with the needs of `other`; that itself if there is no difference then."""
        if self is other or len(self.needs) != len(other.needs):
            return self
        alike = replace(self, needs=other.needs)
        return other if alike == other else alike

    def difference(self, other: "Layout") -> str:
        """In which way a later value is another than this one."""
        was, now = (
            ", ".join(str(list(spec.shape)) for spec in layout.specs) or "without tensors"
            for layout in (self, other)
        )
        if was != now:
            return f"was {was} and is now {now}; a timetable needs equal shapes"
        if self.specs != other.specs:
            pair = next(p for p in zip(self.specs, other.specs, strict=True) if p[0] != p[1])
            return f"was {pair[0]} and is now {pair[1]}; a timetable needs equal dtypes and strides"
        if self.needs != other.needs:
            return f"needed gradients {self.needs} and needs now {other.needs}"
        pairs = zip(self.leaves or (), other.leaves or (), strict=False)
        before, after = next((p for p in pairs if p[0] != p[1]), (self.tree, other.tree))
        return f"held {before} and holds now {after}; what is no tensor has to stay the same"


class Value(NamedTuple):
    """A value in memory."""

    layout: Layout
    tensors: list[Tensor]

    def apart(self) -> "Value":
        """The value without its graph, its tensors with version counters of their own."""
        return Value(self.layout, [tensor.data for tensor in self.tensors])

    def begun(self, grads: dict[int, Tensor]) -> "Value":
        """The value as the beginning of a graph, whose backward puts the gradients of tensors that
        need some into `grads`, by their number."""
        made = [tensor.data for tensor in self.tensors]
        for number, needed in enumerate(self.layout.needs):
            if needed:
                note = partial(grads.__setitem__, number)
                made[number] = Beginning.apply(made[number].requires_grad_(), note)  # type: ignore[no-untyped-call]
        return Value(self.layout, made)


def hold(value: Any) -> Value:
    """`value` where it is. Its tensors need gradients where they say so.

    WorkloadError for a value with parts that are neither tensors nor constants.
    """
    if isinstance(value, Tensor):
        return Value(_alone(expanded_spec_of(value), value.requires_grad), [value])
    flat, tree = tree_flatten(value)
    tensors: list[Tensor] = []
    places: dict[int, TensorPlace] = {}
    leaves: list[TensorPlace | tuple[type, Any]] = []
    for leaf in flat:
        if not isinstance(leaf, Tensor):
            leaves.append((type(leaf), _constant(leaf)))
            continue
        if id(leaf) not in places:
            places[id(leaf)] = TensorPlace(len(tensors))
            tensors.append(leaf)
        leaves.append(places[id(leaf)])
    layout = Layout(
        tuple(expanded_spec_of(t) for t in tensors),
        tuple(t.requires_grad for t in tensors),
        tuple(leaves),
        tree,
    )
    return Value(layout, tensors)


@lru_cache(maxsize=4096)
def _alone(spec: Spec, needs: bool) -> Layout:
    """The layout of a value that is one tensor, as most are."""
    return Layout((spec,), (needs,))


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`value` with each of its tensors changed, a tensor that is there twice once."""
    if isinstance(value, Tensor):
        return change(value)
    done: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = change(tensor)
        return done[id(tensor)]

    return tree_map_only(Tensor, once, value)


def detached(value: Any) -> Any:
    """The value without its graph; its tensors say still which of them need gradients."""
    return mapped(lambda t: t.detach().requires_grad_(t.requires_grad), value)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a value as far as they can be seen."""
    flat, _ = tree_flatten(value)
    return list({id(leaf): leaf for leaf in flat if isinstance(leaf, Tensor)}.values())


def write_grads(flat: Tensor, grads: Mapping[int, Tensor]) -> Grads:
    """Copy gradients, by the number of their tensor, into `flat` (uint8), and say how they lie.

    They may be views of memory that shares bytes with `flat`."""
    ready = {n: g if g.layout is torch.strided else g.to_dense() for n, g in grads.items()}
    if len(ready) > 1:  # one may lie where another is written
        home = flat.untyped_storage().data_ptr()
        inside = {n: g.untyped_storage().data_ptr() == home for n, g in ready.items()}
        ready = {n: g.clone() if inside[n] else g for n, g in ready.items()}
    found = tuple((number, expanded_spec_of(ready[number])) for number in sorted(ready))
    for number, place in read_grads(flat, found).items():
        put(place, ready[number])
    return found


def read_grads(flat: Tensor, grads: Grads) -> dict[int, Tensor]:
    """The gradients in `flat` (uint8) by the number of their tensor."""
    places = views(flat, (spec for _, spec in grads))
    return {number: place for (number, _), place in zip(grads, places, strict=True)}


def _constant(leaf: object) -> object:
    if not isinstance(leaf, _CONSTANTS):
        raise WorkloadError(
            f"a value between layers holds a {type(leaf).__name__}; it may hold tensors, numbers, "
            "text and None in tuples, lists, dicts and what is registered as a pytree"
        )
    return leaf
