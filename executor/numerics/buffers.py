"""Module buffers that a forward changes, such as the running statistics of a BatchNorm.

A layer may change them in place or put other tensors in their stead. Either way the values end in
the tensors that were there first, which the user's model shows. Which ones change is found in the
first forward, for all replicas of a shard at once; running a forward again begins with the values
that the first run saw, and leaves the current ones alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.numerics.flat import same
from profiles.codec import align

Snapshot = tuple[Tensor, ...]  # of the buffers that change, in their order


class _Slot(NamedTuple):
    """A buffer: where modules hold it, its name in the layer, the tensor that is there for good."""

    owners: list[tuple[nn.Module, str]]
    name: str
    home: Tensor


class Found:
    """The numbers of the buffers that change; None until a forward has shown them. `keeps`: a
    forward itself reads what its graph keeps."""

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] | None = None
        self.keeps = False


class Buffers:
    """The buffers of one shard's layers. `found` is shared by all its replicas."""

    def __init__(self, layers: Sequence[nn.Module], found: Found | None = None) -> None:
        self.found = found or Found()
        self._slots = _slots(layers)
        self._versions = self._current()
        if not self._slots:
            self.found.numbers = ()

    @property
    def bytes(self) -> int:
        """Bytes of all buffers, each padded."""
        return sum(align(slot.home.nbytes) for slot in self._slots)

    @property
    def changing(self) -> list[_Slot]:
        """The buffers that change, as far as it is known."""
        return [self._slots[number] for number in self.found.numbers or ()]

    @property
    def changing_bytes(self) -> int:
        """Bytes of those that change, each padded."""
        return sum(align(slot.home.nbytes) for slot in self.changing)

    @contextmanager
    def kept(self, *, snapshot: bool) -> Iterator[list[Tensor]]:
        """Around a forward whose changes count and whose graph, if any, ends with the op. With
        `snapshot` the list holds afterwards what the changing buffers were before."""
        if self.found.numbers is None:
            with self._learned(apart=False) as before:
                yield before
            if not snapshot:
                before.clear()
            return
        before = list(self.now()) if snapshot else []
        yield before
        _settle(self.changing)
        self._expect_unchanged()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Around a forward whose changes count and whose graph stays: it works on tensors of its
        own, which the next forward does not change."""
        if self.found.numbers is None:
            with self._learned(apart=True):
                yield
            return
        for slot in self.changing:
            _show(slot, slot.home.clone())
        yield
        _settle(self.changing)
        self._expect_unchanged()

    @contextmanager
    def again(self, before: Sequence[Tensor]) -> Iterator[None]:
        """Around another run of a forward that began with the values `before`, which it may use
        up; nothing changes."""
        for slot, own in zip(self.changing, before, strict=True):
            _show(slot, own)
        yield
        for slot in self.changing:
            _show(slot, slot.home)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Around a forward that must not change any; WorkloadError for one that does."""
        was = self._current()
        yield
        for slot, version in zip(self._slots, was, strict=True):
            if _latest(slot) is not slot.home or slot.home._version != version:
                raise WorkloadError(
                    f"buffer {slot.name} changes in eval mode; evaluation must leave it alone"
                )

    def now(self) -> Snapshot:
        """The values of those that change, to begin `again` with."""
        return tuple(slot.home.clone() for slot in self.changing)

    def copy_from(self, other: "Buffers") -> None:
        """Take over the values of the buffers that change from another replica."""
        for mine, theirs in zip(self.changing, other.changing, strict=True):
            if mine.home is not theirs.home:
                mine.home.copy_(theirs.home)
        self._versions = self._current()

    def take(self, numbers: tuple[int, ...], values: Snapshot) -> None:
        """Take over which ones change, and their values, from another process."""
        self.found.numbers = numbers
        for slot, value in zip(self.changing, values, strict=True):
            slot.home.copy_(value)
        self._versions = self._current()

    @contextmanager
    def _learned(self, *, apart: bool) -> Iterator[list[Tensor]]:
        """The first forward: what it changes is known afterwards, module by module; the list
        holds what that was before. `apart`: its graph may keep the memory of what it changed."""
        was = [_hidden(slot.home) for slot in self._slots]
        before: list[Tensor] = []
        if apart:
            for slot in self._slots:
                _show(slot, slot.home.data)
        try:
            yield before
        except BaseException:  # it may be run again
            for slot, values in zip(self._slots, was, strict=True):
                _show(slot, slot.home)
                slot.home.data.copy_(values)
            raise
        changed = {
            id(module)
            for slot, values in zip(self._slots, was, strict=True)
            for module, name in slot.owners
            if not same(_shown(module, name, slot).cpu(), values)
        }
        numbers = tuple(
            number
            for number, slot in enumerate(self._slots)
            if any(id(module) in changed for module, _ in slot.owners)
        )
        for number, slot in enumerate(self._slots if apart else ()):
            if number in numbers:
                slot.home.data = _latest(slot).detach().clone()
            else:
                _show(slot, slot.home)
        self.found.numbers = numbers
        for number, slot in zip(numbers, self.changing, strict=True):
            before.append(torch.empty_like(slot.home).copy_(was[number]))
        _settle(self.changing)
        self._versions = self._current()

    def _current(self) -> list[int]:
        return [slot.home._version for slot in self._slots]

    def _expect_unchanged(self) -> None:
        """WorkloadError for a buffer that changes and did not in the first forward."""
        now, known = self._current(), self.found.numbers or ()
        if now == self._versions:
            return
        for number, slot in enumerate(self._slots):
            if number not in known and now[number] != self._versions[number]:
                raise WorkloadError(
                    f"buffer {slot.name} changes in this forward and did not in the first one, so "
                    "it could not be run again; let it change always or never"
                )
        self._versions = now


def _slots(layers: Sequence[nn.Module]) -> list[_Slot]:
    """Each buffer once, wherever modules hold it."""
    slots: dict[int, _Slot] = {}
    for layer in layers:
        own = set(map(id, layer.buffers()))  # a module in it may show what the layer does not use
        for path, module in layer.named_modules():
            for name, value in module._buffers.items():
                if value is not None and id(value) in own:
                    slot = _Slot([], f"{path}.{name}" if path else name, value)
                    slots.setdefault(id(value), slot).owners.append((module, name))
    return list(slots.values())


def _show(slot: _Slot, tensor: Tensor) -> None:
    for module, name in slot.owners:
        module._buffers[name] = tensor


def _settle(slots: Sequence[_Slot]) -> None:
    """Bring what the modules show now home, and let them show that again."""
    for slot in slots:
        latest = _latest(slot)
        if latest is not slot.home:
            with torch.no_grad():
                slot.home.copy_(latest)
            _show(slot, slot.home)


def _latest(slot: _Slot) -> Tensor:
    """The tensor that a module shows instead of the one at home, if there is any."""
    shown = (_shown(module, name, slot) for module, name in slot.owners)
    latest = next((tensor for tensor in shown if tensor is not slot.home), slot.home)
    if latest.shape != slot.home.shape:
        raise WorkloadError(
            f"buffer {slot.name} was {list(slot.home.shape)} and is now {list(latest.shape)}; "
            "let it keep its shape"
        )
    return latest


def _shown(module: nn.Module, name: str, slot: _Slot) -> Tensor:
    tensor = module._buffers.get(name)
    return slot.home if tensor is None else tensor


def _hidden(tensor: Tensor) -> Tensor:
    """A copy in memory that is none of the device's, and that no meter sees."""
    values = tensor.detach().cpu().contiguous()
    content = bytearray(values.view(-1).view(torch.uint8).numpy())
    return torch.frombuffer(content, dtype=values.dtype).view(values.shape) if content else values
