"""Instructions for slices of a model: the leaves of arguments and outputs, and where each comes
from. Between slices go plain tensors: one, or a tuple."""

import enum
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten

from executor.errors import WorkloadError
from executor.numerics import same

_KINDS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum, range)

Boundary = Tensor | tuple[Tensor, ...]
Dims = tuple[tuple[int, bool], ...]  # sizes, and whether they grow with the batch
Kind = Literal["input", "made", "given", "left"]


class Unsupported(Exception):
    """Why a model cannot be taken apart in this way."""


class OneSize(Unsupported):
    """It can be taken apart for one batch size only, if at all."""


def packed(values: Sequence[Tensor]) -> Boundary:
    """A boundary of these tensors."""
    return values[0] if len(values) == 1 else tuple(values)


class Shared:
    """Base of values that copies of a layer share, since nobody changes them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shared":
        return self


class Key(NamedTuple):
    """A tensor that goes from one slice to another: leaf `leaf` of the batch's inputs, of what
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


Part = Any  # where a leaf comes from: a key, one of the three above, or a constant itself


@dataclass(frozen=True)
class Form:
    """The structure of a call's arguments or outputs, and those of them that are no tensor, by
    place."""

    tree: TreeSpec
    constants: Mapping[int, Any]

    @classmethod
    def of(cls, where: str, leaves: Sequence[Any], tree: TreeSpec) -> "Form":
        """The form of recorded leaves; Unsupported when they need not be so again."""
        values = [leaf.value for leaf in leaves]
        kept = [
            (n, value) for n, value in enumerate(values) if not isinstance(value, Tensor | Fresh)
        ]
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
class Turn:
    """A call of the module at `path`, the call `number` when it was recorded. `form`: of its
    outputs."""

    path: str
    number: int
    form: Form


@dataclass(frozen=True)
class Stub(Turn):
    """A call before the slice: it returns these parts. `inside`: calls of modules inside of it,
    whose hooks may hand on what they returned."""

    parts: tuple[Part, ...]
    inside: tuple["Stub", ...] = ()


@dataclass(frozen=True)
class Live(Turn):
    """A call in the slice. Of a layer `given` is the form of its arguments, and `inside` are calls
    of modules inside of it whose outputs others use; `parts`: the arguments of one that the slice
    begins with."""

    given: Form | None = None
    parts: tuple[Part, ...] | None = None
    inside: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Stop(Turn):
    """The call of the next layer, where the slice ends. `form`: of its arguments; `same`: which of
    them are tensors of the boundary as it came."""

    same: tuple[tuple[int, Key], ...]


@dataclass(frozen=True)
class Script(Shared):
    """Instructions for a slice of a model between two boundaries.

    label: of the slice; code: of the model's own code in it. turns: the calls of modules in their
    order. begins: the number of the last call that is a stub, or of the layer that it begins with;
    ends: of the layer behind which it ends. clones: tensors of the boundary that it changes in
    place, and others may need as they were. inputs: what the model is called with; the first and
    the last slice are given the batch. samples: a tensor that shows how large the batch is, and its
    values a sample. quiet: the code before it draws random numbers. fixed: see slices.Quiet.
    picked: parameters of which it does nothing but take rows; None where its modules say so.
    """

    label: str
    code: str
    before: tuple[Key, ...]
    after: tuple[Key, ...]
    clones: tuple[Key, ...]
    turns: tuple[Turn, ...]
    begins: int = -1
    ends: int = -1
    inputs: tuple[Part, ...] = ()
    inputs_tree: TreeSpec | None = None
    last: bool = False
    samples: tuple[Key, int] | None = None
    quiet: bool = False
    fixed: Mapping[int, Any] = field(default_factory=dict)
    has_loss: bool = True
    picked: tuple[str, ...] | None = None

    @property
    def alone(self) -> bool:
        """True for one layer, without the model's own code."""
        return self.inputs_tree is None

    def wanted(self, number: int, **leaves: Sequence[Any]) -> dict[Key, Tensor]:
        """Those leaves of the call `number`, by kind, that the boundary after the slice needs."""
        return {
            key: leaves[key.kind][key.leaf]
            for key in self.after
            if key.number == number and key.kind in leaves
        }
