"""Packs what a graph keeps for its backward into one flat that may move, and finds it again.

Autograd hands over each tensor it wants to keep and takes back a note instead. A note says where
the bytes are: in a flat that has a place of its own in the plan (parameters, input), so that
nothing needs to be kept, or in the packed flat, to which the tensor's storage was copied.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from executor.errors import WorkloadError
from executor.numerics.flat import Spec
from profiles.codec import align


class PackError(WorkloadError):
    """A layer keeps something that cannot be packed."""


class Note(NamedTuple):
    """A tensor `offset` bytes into a flat."""

    flat: str | int  # its name
    offset: int
    spec: Spec


Flats = Mapping[str | int, Tensor]


class _Key(NamedTuple):
    """Bytes of a storage that have this version."""

    storage: int
    version: int
    begin: int
    size: int


class Packing:
    """The notes of one graph. `bytes` is what was packed so far.

    `flats`: what has a place of its own, by name ("param" are the parameters, numbers the tensors
    of the input). `saved`: the flat to pack into (None: only count); `constants` stay where they
    are. Each storage is copied once, whole, to a multiple of ALIGNMENT. A storage is told from one
    that had its address earlier by a weak reference, and from itself before a change in place by
    the version. Pieces of a storage that are no views of one tensor (`unsafe_chunk` makes such, and
    recurrent layers use it) have versions of their own: each is copied by itself.
    """

    def __init__(self, flats: Flats, saved: Tensor | None, constants: Iterable[Tensor]) -> None:
        self.bytes = 0
        self._flats = flats
        self._saved = saved
        self._where = flats.get(0, flats["param"]).device
        self._ranges = [(name, t.data_ptr(), _extent(t)) for name, t in flats.items()]
        self._constants = {t.untyped_storage()._cdata for t in constants if _plain(t)}
        self._packed: dict[_Key, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def hooks(self) -> saved_tensors_hooks:
        """A context in which what autograd keeps is packed."""
        return saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> Note | Tensor:
        """A note of the tensor's place; PackError when its bytes cannot simply be copied."""
        if not _plain(tensor):
            raise PackError(
                f"keeps a tensor for its backward that is not plain strided ({tensor.layout}), "
                'which cannot be packed; plan its shard with activations "saved" or "recompute"'
            )
        elsewhere = tensor.device != self._where  # a kernel's scalars on the host
        if elsewhere or tensor.untyped_storage()._cdata in self._constants:
            return tensor
        name, offset = self._known(tensor) or ("saved", self._place(tensor))
        return Note(name, offset, Spec(tensor.dtype, tuple(tensor.shape), tensor.stride()))

    def _known(self, tensor: Tensor) -> tuple[str | int, int] | None:
        """The flat that the tensor is a view of, and where it begins in it."""
        address = tensor.data_ptr()
        for name, start, size in self._ranges:
            if start <= address < start + size:
                return name, address - start
        return None

    def _place(self, tensor: Tensor) -> int:
        """The tensor's offset in the packed flat, after its storage was copied there if needed."""
        storage = tensor.untyped_storage()
        begin, size = _held(tensor)
        key = _Key(storage._cdata, tensor._version, begin, size)
        known, offset = self._packed.get(key, (None, 0))
        if known is None or known() is None:
            offset = self.bytes
            self.bytes += align(size)
            self._packed[key] = weakref.ref(storage), offset
            self._copy(storage, begin, size, offset)
        return offset + int(tensor.storage_offset()) * tensor.itemsize - begin

    def _copy(self, storage: torch.UntypedStorage, begin: int, size: int, offset: int) -> None:
        if self._saved is None:
            return
        if offset + size > self._saved.numel():
            raise WorkloadError(
                f"packs {offset + size} bytes or more for its backward, the plan has "
                f"{self._saved.numel()}; profile and build again"
            )
        values = torch.empty(0, dtype=torch.uint8, device=storage.device)
        values.set_(storage, begin, (size,), (1,))
        self._saved[offset : offset + size].copy_(values)

    def move(self, flats: Flats, saved: Tensor) -> None:
        """From now on unpack from these."""
        self._flats = {**flats, "saved": saved}

    def unpack(self, note: Note | Tensor) -> Tensor:
        """The tensor of a note, a view of its flat; only after `move`. PackError for a layer that
        asks before."""
        if isinstance(note, Tensor):
            return note
        if note.flat not in self._flats:
            raise PackError(
                "goes back through its own graph in its forward, which cannot be packed; plan its "
                'shard with activations "saved" or "recompute"'
            )
        flat, (dtype, shape, stride) = self._flats[note.flat], note.spec
        begin = int(flat.storage_offset()) * flat.itemsize + note.offset
        made = torch.empty(0, dtype=dtype, device=flat.device)
        return made.set_(flat.untyped_storage(), begin // dtype.itemsize, shape, stride)


def _extent(tensor: Tensor) -> int:
    """Bytes from its first to its last value; what is expanded has fewer than it shows."""
    if not tensor.numel():
        return 0
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.itemsize


def _held(tensor: Tensor) -> tuple[int, int]:
    """Begin and number of the bytes that change with the tensor's version, in its storage: those
    of the tensor that it is a view of."""
    root = tensor if tensor._base is None else tensor._base
    return int(root.storage_offset()) * root.itemsize, _extent(root)


def _plain(tensor: Tensor) -> bool:
    """True if the tensor is what its bytes, shape and strides say, and nothing more."""
    ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return ordinary and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
