"""Random numbers while a model's code runs again between two of its layers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from executor.chain.constants import equal
from executor.chain.record import SCALAR
from executor.errors import WorkloadError

_MASKS = (
    "A Hugging Face model looks whether attention_mask is all ones: pad to a length that no sample "
    "fills, or leave the mask out of all batches; a decoder does not look with "
    'attn_implementation="eager" in its config'
)


class Quiet(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While `dead`, code is run only to get past it and draws no random numbers.

    `fixed` are numbers that the model's code goes by and that must be as they were, by their place
    among all that it gets from tensors outside of modules that run (`inside`): all pieces must go
    the same way, also those with nothing in them to look at it.
    """

    def __init__(self, label: str, fixed: Mapping[int, Any], *, dead: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dead = dead
        self.inside = False
        self._label, self._fixed, self._count = label, fixed, 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.dead and torch.Tag.nondeterministic_seeded in func.tags:
            return _undrawn(func, args, kwargs)
        result = func(*args, **kwargs)
        if func is SCALAR and not self.inside:
            self._compare(result)
        return result

    def _compare(self, number: Any) -> None:
        fixed = self._fixed.get(self._count, number)
        self._count += 1
        if not equal(number, fixed):
            raise WorkloadError(
                f"{self._label}: the model's own code goes by a value that is {number!r} and was "
                f"{fixed!r}; decide inside one of its modules, or with torch.where. {_MASKS}"
            )


def _undrawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros of the shapes that an op which draws would give."""
    if func._schema.is_mutable:
        return args[0]
    where = kwargs.get("device") or device_of((args, kwargs))
    bare = _mapped((args, kwargs), "meta")
    if "device" in kwargs:
        bare[1]["device"] = torch.device("meta")
    return _mapped(func(*bare[0], **bare[1]), where)


def device_of(value: Any) -> torch.device:
    """The device of the first tensor; the CPU where there is none."""
    tensors = (x.device for x in tree_leaves(value) if isinstance(x, Tensor))
    return next(tensors, torch.device("cpu"))


def _mapped(value: Any, where: Any) -> Any:
    """The same structure with tensors of zeros on `where` in place of its tensors."""
    leaves, tree = tree_flatten(value)
    bare = [
        torch.zeros_like(x, device=where, requires_grad=False) if isinstance(x, Tensor) else x
        for x in leaves
    ]
    return tree_unflatten(bare, tree)
