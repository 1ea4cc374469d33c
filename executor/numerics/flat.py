"""Flat memory: many tensors as views of one uint8 tensor, so that a shard moves in one copy.

Invariant: every view begins at a multiple of `ALIGNMENT` bytes, and the bytes of a list of
tensors are the sum of their padded sizes, whatever dtypes it mixes.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from profiles.codec import align

Cast = tuple[Tensor, Tensor]  # bf16 on a device and fp32 in host memory, of one dimension


class Spec(NamedTuple):
    """A view of bytes as a tensor; strides are kept so that no kernel sees others."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the values, without padding; what is expanded (stride 0) is there once."""
        return _bytes(self)


@lru_cache(maxsize=4096)
def _bytes(spec: Spec) -> int:
    count = spec.dtype.itemsize
    for size, step in zip(spec.shape, spec.stride, strict=True):
        count *= size if step else min(size, 1)
    return count


def spec_of(tensor: Tensor) -> Spec:
    """The tensor's spec; its strides when its values are dense in memory, else contiguous."""
    return _spec(tensor.dtype, tuple(tensor.shape), tensor.stride())


def expanded_spec_of(tensor: Tensor) -> Spec:
    """`spec_of` for a value that may be expanded, as masks are: its values are kept once."""
    return _expanded(tensor.dtype, tuple(tensor.shape), tensor.stride())


@lru_cache(maxsize=4096)
def _spec(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Spec:
    return Spec(dtype, shape, stride if _dense(shape, stride) else _contiguous(shape))


@lru_cache(maxsize=4096)
def _expanded(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Spec:
    once = tuple(n if step else min(n, 1) for n, step in zip(shape, stride, strict=True))
    if once == shape:
        return _spec(dtype, shape, stride)
    steps = _spec(dtype, once, stride).stride
    return Spec(dtype, shape, tuple(k if s else 0 for k, s in zip(steps, stride, strict=True)))


def _dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """True if the values fill their memory in some order of the dimensions, without overlap."""
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True)):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def view(flat: Tensor, spec: Spec, offset: int = 0) -> Tensor:
    """The tensor that `spec` describes at byte `offset` of the uint8 tensor `flat`.

    ValueError when it does not fit, with both numbers.
    """
    end, size = offset + spec.bytes, flat.numel()
    if end > size:
        raise ValueError(
            f"a {tuple(spec.shape)} tensor of {spec.dtype} needs {end} bytes, its buffer has {size}"
        )
    values = flat.view(spec.dtype)
    begin = values.storage_offset() + offset // spec.dtype.itemsize
    # .data: a version counter of its own, or autograd would take a write to any other byte of
    # the flat for a change of this tensor.
    return values.as_strided(spec.shape, spec.stride, begin).data


def views(flat: Tensor, specs: Iterable[Spec]) -> list[Tensor]:
    """The tensors, one after another from the first byte of `flat` on."""
    out, offset = [], 0
    for spec in specs:
        out.append(view(flat, spec, offset))
        offset += align(spec.bytes)
    return out


def put(target: Tensor, value: Tensor) -> None:
    """Copy `value`, without its graph, to a view that may be expanded as it is."""
    if 0 in target.stride():  # only a part of it has bytes of its own
        once = tuple(slice(None) if step else slice(0, 1) for step in target.stride())
        target, value = target[once], value[once]
    target.copy_(value.detach())


class Views:
    """Views of flats at many addresses, made once for each: a slot is bound again and again."""

    def __init__(self, specs: Iterable[Spec] = ()) -> None:
        self.bytes = 0
        self._places: list[tuple[Spec, int]] = []  # each with its first byte
        self._known: dict[int, list[Tensor]] = {}
        for spec in specs:
            self.add(spec)

    def add(self, spec: Spec) -> None:
        """One more, behind all others."""
        self._places.append((spec, self.bytes))
        self.bytes += align(spec.bytes)

    @property
    def specs(self) -> list[Spec]:
        return [spec for spec, _ in self._places]

    def at(self, flat: Tensor) -> list[Tensor]:
        """The specs' tensors in `flat` (uint8)."""
        address = flat.data_ptr()
        known = self._known.get(address, [])
        if len(known) < len(self._places):
            new = (view(flat, spec, offset) for spec, offset in self._places[len(known) :])
            known = self._known[address] = [*known, *new]
        return known


def same(left: Any, right: Any) -> bool:
    """True for equal values: tensors, in whatever holds them, to the last bit; on the meta device
    there are none."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        alike = left.shape == right.shape and left.dtype == right.dtype
        hollow = left.is_meta and right.is_meta
        return alike and (hollow or torch.equal(_bits(left), _bits(right)))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(v, right[k]) for k, v in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if left is right or type(left) is not type(right):
        return left is right
    return bool(left == right) or bool(left != left and right != right)  # no number is no number


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
