"""Instructions for the pieces of a model: for each leaf of arguments and outputs, where it comes
from and where it goes. Between pieces go plain tensors: one, or a tuple."""

import enum
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec

from executor.errors import WorkloadError
from executor.numerics import same

T = TypeVar("T")

_KINDS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum, range)

Boundary = Tensor | tuple[Tensor, ...]
Dims = tuple[tuple[int, bool], ...]  # sizes, and whether they grow with the batch


class Unsupported(Exception):
    """Why a model cannot be taken apart in this way."""


class OneSize(Unsupported):
    """It can be taken apart for one batch size only, if at all."""


def unpacked(value: Boundary) -> tuple[Tensor, ...]:
    """A boundary's tensors."""
    return (value,) if isinstance(value, Tensor) else value


def packed(values: Sequence[Tensor]) -> Boundary:
    """A boundary of these tensors."""
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True)
class Fixed(Generic[T]):
    """A value that copies of a layer share, since nobody changes it."""

    value: T

    def __deepcopy__(self, memo: dict[int, Any]) -> "Fixed[T]":
        return self


@dataclass(frozen=True)
class Const:
    """A leaf that is no tensor, the same in every run."""

    value: Any


@dataclass(frozen=True)
class Fresh:
    """A leaf that modules fill for a later forward, which does not come: a cache of transformers.
    Each call gets one of its own, as it was before the first call."""

    pickled: bytes

    @classmethod
    def of(cls, value: Any) -> "Fresh | None":
        """The object as it is now; None for any other."""
        caches = sys.modules.get("transformers.cache_utils")
        if caches is None or not isinstance(value, caches.Cache):
            return None
        return cls(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def made(self) -> Any:
        """Another one of these."""
        return pickle.loads(self.pickled)


@dataclass(frozen=True)
class Slot:
    """A leaf that comes with the boundary, at this place of it. `clone`: it is changed in place,
    and others may need it as it was."""

    place: int
    clone: bool = False


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of the model that a module is called with or returns."""

    name: str


@dataclass(frozen=True)
class Dummy:
    """A tensor of zeros whose values nobody uses; sizes that grow are of one sample."""

    dtype: torch.dtype
    dims: Dims

    def at(self, batch: int, where: torch.device) -> Tensor:
        """Zeros for a batch of this size."""
        shape = [size * batch if grows else size for size, grows in self.dims]
        return torch.zeros(shape, dtype=self.dtype, device=where)


@dataclass(frozen=True)
class Same:
    """A leaf that is the module's argument at this place, handed on."""

    place: int


Part = Const | Fresh | Slot | Held | Dummy | Same


@dataclass(frozen=True)
class Take:
    """From what a call returned or was given: leaf `leaf` goes to place `place` of the values
    that a piece hands on."""

    leaf: int
    place: int


@dataclass(frozen=True)
class Inner:
    """From what the call of a module inside of a layer returned, by its number among those that
    are looked at: leaf `leaf`."""

    number: int
    leaf: int


@dataclass(frozen=True)
class Left:
    """A call that was before: it returns these parts. `last`: from here on the model runs.
    `inside`: calls of modules inside of it, by their paths, whose hooks may hand on what they
    returned."""

    parts: tuple[Part, ...]
    tree: TreeSpec
    last: bool = False
    inside: tuple[tuple[str, "Left"], ...] = ()


@dataclass(frozen=True)
class Live:
    """A call in the gap itself: it runs, and what is needed later is kept. `constants`: what of
    its outputs is no tensor, by place."""

    takes: tuple[Take, ...]
    tree: TreeSpec
    constants: Mapping[int, Any]


@dataclass(frozen=True)
class Stop:
    """The call of the next layer, where the gap ends. `constants`: what of its arguments is no
    tensor, by place. `same`: which arguments are tensors of the boundary as it came, and where."""

    takes: tuple[Take, ...]
    tree: TreeSpec
    constants: Mapping[int, Any]
    same: tuple[tuple[int, int], ...]


Action = Left | Live | Stop


@dataclass(frozen=True)
class Script:
    """The events of a gap; copies of it share one, since nobody changes it.

    `actions`: the paths of the modules that are called, in turn, and what each call does.
    `inputs`: what the model is called with; the first and the last gap are given the batch.
    `out`: the boundary after it, from kept values and from the boundary before it. `batch`: a
    tensor of the boundary that says how large the batch is, and its values a sample. `quiet`: the
    code left out draws random numbers. `fixed`: see gap.Quiet.
    """

    actions: tuple[tuple[str, Action], ...]
    inputs: tuple[Part, ...]
    inputs_tree: TreeSpec
    first: bool
    last: bool
    out: tuple[int | Slot, ...]
    batch: tuple[int, int] | None
    quiet: bool
    fixed: Mapping[int, Any]
    has_loss: bool

    def __deepcopy__(self, memo: dict[int, Any]) -> "Script":
        return self


def constant(where: str, value: Any) -> Any:
    """A leaf that may be kept for all runs. Unsupported for one that may hold anything."""
    if value is None or isinstance(value, _KINDS) or _is_known(value):
        return value
    raise Unsupported(f"{where} is given or returns a {type(value).__name__}")


def lasting(where: str, value: Any) -> Const | Fresh:
    """A leaf that is no tensor, for all runs; Unsupported as `constant`."""
    return value if isinstance(value, Fresh) else Const(constant(where, value))


def constants(where: str, leaves: Sequence[Any]) -> dict[int, Any]:
    """All leaves that are the same in each run, by place."""
    return {
        place: constant(where, leaf)
        for place, leaf in enumerate(leaves)
        if not isinstance(leaf, Tensor | Fresh)
    }


def expect(
    label: str,
    what: str,
    leaves: Sequence[Any],
    tree: TreeSpec,
    expected: TreeSpec,
    constants: Mapping[int, Any],
) -> None:
    """WorkloadError when values are structured otherwise than when the model was taken apart."""
    if tree != expected:
        raise WorkloadError(f"{label} {what} {tree}, before {expected}; a timetable needs equal")
    for place, value in constants.items():
        if not same(leaves[place], value):
            raise WorkloadError(
                f"{label} {what} {leaves[place]!r} where it was {value!r}; "
                "a value that changes from batch to batch must be a tensor"
            )


def _is_known(value: Any) -> bool:
    """True for a function or class of a module, not one made in the run: a lambda may hold
    tensors of the batch, and a method those of its object."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return callable(value) and getattr(module, getattr(value, "__name__", ""), None) is value
