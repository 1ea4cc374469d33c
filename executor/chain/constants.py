"""What of arguments and outputs is no tensor: kept for all runs, and compared in each."""

import enum
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec

from executor.chain.flow import Unsupported
from executor.chain.parts import Const, Fresh
from executor.chain.record import Leaf
from executor.errors import WorkloadError

_KINDS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum, range)


def constant(where: str, value: Any) -> Any:
    """A leaf that may be kept for all runs. Unsupported for one that may hold anything."""
    if value is None or isinstance(value, _KINDS) or _is_known(value):
        return value
    raise Unsupported(f"{where} is given or returns a {type(value).__name__}")


def lasting(where: str, value: Any) -> Const | Fresh:
    """A leaf that is no tensor, for all runs; Unsupported as `constant`."""
    return value if isinstance(value, Fresh) else Const(constant(where, value))


def constants(where: str, leaves: Sequence[Leaf]) -> dict[int, Any]:
    """All leaves that are the same in each run, by place."""
    return {
        place: constant(where, leaf.value)
        for place, leaf in enumerate(leaves)
        if not leaf.is_tensor and not isinstance(leaf.value, Fresh)
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
        if not equal(leaves[place], value):
            raise WorkloadError(
                f"{label} {what} {leaves[place]!r} where it was {value!r}; "
                "a value that changes from batch to batch must be a tensor"
            )


def equal(left: Any, right: Any) -> bool:
    """Whether two leaves that are no tensors are the same, as no number is as no number."""
    if left is right:
        return True
    alike = type(left) is type(right)
    return alike and (bool(left == right) or bool(left != left and right != right))


def _is_known(value: Any) -> bool:
    """Whether it is a function or class of a module, not one made in the run: a lambda may hold
    tensors of the batch, and a method those of its object."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return callable(value) and getattr(module, getattr(value, "__name__", ""), None) is value
