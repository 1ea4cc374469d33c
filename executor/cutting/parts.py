"""Instructions for the pieces of a model: the leaves of arguments and outputs, and where each comes
from. Between pieces go plain tensors: one, or a tuple."""

import enum
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten

from executor.errors import WorkloadError
from executor.numerics import same

_KINDS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum, range)
_CPU = torch.device("cpu")

Boundary = Tensor | tuple[Tensor, ...]
Dims = tuple[tuple[int, bool], ...]  # sizes, and whether they grow with the batch
Kind = Literal["input", "made", "given", "left"]


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


class Shared:
    """Base of values that copies of a layer share, since nobody changes them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shared":
        return self


class Key(NamedTuple):
    """A tensor that goes from one piece to another: leaf `leaf` of the batch's inputs, of what
    the call `number` returned, was given, or left changed in what it was given."""

    kind: Kind
    number: int
    leaf: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {self.leaf}"


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


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of the model that a module is called with or returns."""

    name: str


@dataclass(frozen=True)
class Dummy:
    """A tensor of zeros whose values nobody uses; sizes that grow are of one sample."""

    dtype: torch.dtype
    dims: Dims


@dataclass(frozen=True)
class Same:
    """A leaf that is the module's argument at this place, handed on."""

    place: int


Part = Any  # where a leaf comes from: a key, one of the four above, or a constant itself


@dataclass(frozen=True)
class Sources:
    """The leaves of a piece's calls while it runs: tensors by their keys, some as `clones`,
    parameters and buffers by name, dummies for so many samples."""

    values: Mapping[Key, Any]
    held: Callable[[str], Tensor]
    clones: tuple[Key, ...] = ()
    samples: int = 0
    where: torch.device = _CPU

    def leaf(self, part: Part, own: Sequence[Any] = ()) -> Any:
        """The leaf of a call that was given `own`."""
        match part:
            case Key():
                value = self.values[part]
                return value.clone() if part in self.clones else value
            case Held(name):
                return self.held(name)
            case Same(place):
                return own[place]
            case Dummy(dtype, dims):
                shape = [size * self.samples if grows else size for size, grows in dims]
                return torch.zeros(shape, dtype=dtype, device=self.where)
            case Fresh(pickled):
                return pickle.loads(pickled)
        return part


@dataclass(frozen=True)
class Form:
    """The structure of a call's arguments or outputs, and those of them that are no tensor, by
    place."""

    tree: TreeSpec
    constants: Mapping[int, Any]

    @classmethod
    def of(cls, where: str, leaves: Sequence[Any], tree: TreeSpec) -> "Form":
        """The form of values as they are now; Unsupported when they need not be so again."""
        kept = [(n, leaf) for n, leaf in enumerate(leaves) if not isinstance(leaf, Tensor | Fresh)]
        return cls(tree, {place: constant(where, leaf) for place, leaf in kept})

    def leaves(self, told: str, value: Any) -> list[Any]:
        """The leaves of a value; WorkloadError when it has another form."""
        leaves, tree = tree_flatten(value)
        if tree != self.tree:
            raise WorkloadError(f"{told} {tree}, before {self.tree}; a timetable needs equal")
        for place, before in self.constants.items():
            if not same(leaves[place], before):
                raise WorkloadError(
                    f"{told} {leaves[place]!r} where it was {before!r}; "
                    "a value that changes from batch to batch must be a tensor"
                )
        return leaves


def constant(where: str, value: Any) -> Any:
    """A leaf that may be kept for all runs. Unsupported for one that may hold anything."""
    if value is None or isinstance(value, (Fresh, *_KINDS)) or _is_known(value):
        return value
    raise Unsupported(f"{where} is given or returns a {type(value).__name__}")


def _is_known(value: Any) -> bool:
    """True for a function or class of a module, not one made in the run: a lambda may hold
    tensors of the batch, and a method those of its object."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return callable(value) and getattr(module, getattr(value, "__name__", ""), None) is value


@dataclass(frozen=True)
class Script(Shared):
    """Instructions for a piece between two boundaries. `clones`: tensors of the first that it
    changes in place, and others may need as they were."""

    label: str
    before: tuple[Key, ...]
    after: tuple[Key, ...]
    clones: tuple[Key, ...]

    def wanted(self, number: int, **leaves: Sequence[Any]) -> dict[Key, Tensor]:
        """Those leaves of the call `number`, by kind, that the boundary after the piece needs."""
        return {
            key: leaves[key.kind][key.leaf]
            for key in self.after
            if key.number == number and key.kind in leaves
        }


@dataclass(frozen=True)
class StepScript(Script):
    """The call `number`, of a layer: its arguments, its outputs, and calls of modules inside of it
    whose outputs others use, by path."""

    number: int
    parts: tuple[Part, ...]
    tree: TreeSpec
    made: Form
    inside: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Turn:
    """A call of the module at `path`, the call `number` when it was recorded; in the gap itself,
    where it runs. `form`: of its outputs."""

    path: str
    number: int
    form: Form


@dataclass(frozen=True)
class Left(Turn):
    """A call that was before the gap: it returns these parts. `last`: from here on the model runs.
    `inside`: calls of modules inside of it, whose hooks may hand on what they returned."""

    parts: tuple[Part, ...]
    last: bool = False
    inside: tuple["Left", ...] = ()


@dataclass(frozen=True)
class Stop(Turn):
    """The call of the next layer, where the gap ends. `form`: of its arguments; `same`: which of
    them are tensors of the boundary as it came."""

    same: tuple[tuple[int, Key], ...]


@dataclass(frozen=True)
class GapScript(Script):
    """The events of a gap.

    `turns`: the calls of modules in their order. `inputs`: what the model is called with; the first
    and the last gap are given the batch. `samples`: a tensor that shows how large the batch is, and
    its values a sample. `quiet`: the code left out draws random numbers. `fixed`: see gap.Quiet.
    `picked`: parameters of which it does nothing but take rows.
    """

    turns: tuple[Turn, ...]
    inputs: tuple[Part, ...]
    inputs_tree: TreeSpec
    last: bool
    samples: tuple[Key, int] | None
    quiet: bool
    fixed: Mapping[int, Any]
    has_loss: bool
    picked: tuple[str, ...]
