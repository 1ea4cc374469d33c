"""Losses and gradients of a batch and of its parts, compared but for rounding."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from executor.workload import Batch, part

_NUMBERS = 4096  # of each gradient that are compared
_FLOOR = 1e-2  # of the largest gradient: smaller ones may be rounding and nothing else
_LOSS = 64  # units in the last place
_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Run(NamedTuple):
    """The loss of a batch or of a part of it, and some numbers of each parameter's gradient."""

    loss: Tensor
    grads: Mapping[str, Tensor]


def pieces_of(batch: Batch, cut: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """The parts of a batch, and where each begins."""
    for end, size in zip(accumulate(cut), cut, strict=True):
        yield end - size, part(batch, end - size, size)


def wide(tensor: Tensor) -> Tensor:
    """A copy with 64 bits for each real number."""
    return tensor.double() if tensor.dtype in _NARROW else tensor.clone()


def some(tensor: Tensor) -> Tensor:
    """Some of its numbers, evenly spread."""
    flat = tensor.detach()
    flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
    return flat[:: max(1, len(flat) // _NUMBERS)].clone()


def alike(whole: Run, parts: Sequence[tuple[float, Run]]) -> bool:
    """True if what the whole gives is the sum of what its parts give, by their factors, but for
    rounding."""
    losses = [factor * one.loss.item() for factor, one in parts]
    size = abs(whole.loss.item()) + sum(map(abs, losses))
    if not abs(whole.loss.item() - sum(losses)) <= _LOSS * _eps(whole.loss) * size:
        return False
    most = max((_size(grad) for grad in whole.grads.values()), default=0.0)
    every = [whole, *(one for _, one in parts)]
    for name in {name for one in every for name in one.grads}:
        terms = [f * one.grads[name].double() for f, one in parts if name in one.grads]
        like = next(one.grads[name] for one in every if name in one.grads)
        grad = whole.grads.get(name, torch.zeros_like(like)).double()
        least = max(_size(grad), *map(_size, terms), _FLOOR * most) if terms else _FLOOR * most
        if not _size(grad - sum(terms)) <= math.sqrt(_eps(like)) * least:
            return False
    return True


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """True if buffers have the same values but for rounding, or none at all."""
    return all(near(tensor, other[name]) for name, tensor in one.items())


def near(one: Tensor, other: Tensor) -> bool:
    off = (one - other).abs().nan_to_num(0.0, 0.0)  # no numbers or infinite ones, in both
    return _size(off) <= math.sqrt(_eps(one)) * max(_size(one.nan_to_num(0.0, 0.0, 0.0)), 1e-30)


def _size(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _eps(tensor: Tensor) -> float:
    """The relative rounding of such numbers; models may compute parts with 32 bits of 64."""
    return max(torch.finfo(kind).eps for kind in (tensor.dtype, torch.float32))
