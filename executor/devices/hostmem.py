"""Host memory for the store and its copies: ordinary, page-locked, and the ring for casts.

bf16 parameters are made from fp32 masters on their way to a CUDA device, piece by piece:

    masters (host store) ──cast──▶ slot of the ring (page-locked) ──copy──▶ parameters (device)

While one piece is copied, the next one is cast. CPU devices need no ring: they cast to the slab.
"""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from executor.devices.device import Mark, aligned, until
from executor.errors import RunError
from executor.numerics import Cast
from plans.schema import Device, Task
from plans.timing import Interval, union

PAGE = os.sysconf("SC_PAGE_SIZE")
PIECE = 4 << 20  # bytes of a slot
RING_BYTES = 3 * PIECE
_FILLING, _PART = 8, 64 << 20  # threads that fill memory, and bytes that one fills at a time
_PORTABLE = 1  # cudaHostRegisterPortable: locked for every device


class HostMemory:
    """Allocates host buffers: ordinary memory, since CPU devices copy in the calling thread."""

    def take(self, count: int) -> Tensor:
        """`count` uninitialised bytes that begin at a multiple of ALIGNMENT."""
        return aligned(count)

    def lock(self, flat: Tensor, spans: Sequence[Interval]) -> None:
        """Use memory that the process has already, in whole pages, of which these bytes are copied
        from and to."""

    def close(self) -> None:
        """No more copies will be made."""


class PageLocked(HostMemory):
    """Memory that devices copy from and to by themselves, locked at its size in whole pages.

    Torch's own pinned allocator rounds every block up to a power of two. A page can be locked only
    once, so no two of these share one. Threads fill the pages first, in huge ones where the system
    has them: the driver alone would lock one page of 4 KiB after the other. Child processes do not
    get this memory: a fork would copy it, or leave the device with the child's.
    """

    def __init__(self) -> None:
        self._locked: list[Tensor] = []

    def take(self, count: int) -> Tensor:
        flat = _mapped(pages(count))[:count]
        self._lock(flat)
        return flat

    def lock(self, flat: Tensor, spans: Sequence[Interval]) -> None:
        for begin, end in union((at // PAGE * PAGE, pages(end)) for at, end in spans):
            self._lock(flat[begin:end])

    def _lock(self, flat: Tensor) -> None:
        if not len(flat):
            return
        size = pages(len(flat))
        code = _runtime().cudaHostRegister(flat.data_ptr(), size, _PORTABLE)
        if int(code):
            raise RunError(
                f"{size} bytes of host memory cannot be page-locked (CUDA error {int(code)}); "
                "raise the limit of locked memory (ulimit -l) or free host memory"
            )
        self._locked.append(flat)

    def close(self) -> None:
        with suppress(RuntimeError):
            for flat in self._locked:
                _runtime().cudaHostUnregister(flat.data_ptr())
        self._locked = []


def _mapped(size: int) -> Tensor:
    """So many zero bytes of pages of their own; RunError where the machine has not as many."""
    try:
        area = mmap.mmap(-1, max(size, PAGE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise RunError(f"the machine cannot give {size} bytes of memory in one piece") from None
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with suppress(OSError, AttributeError):
            area.madvise(getattr(mmap, advice))
    flat = torch.frombuffer(area, dtype=torch.uint8)
    with ThreadPoolExecutor(_FILLING) as pool:
        list(pool.map(Tensor.zero_, torch.split(flat, _PART)))
    return flat[:size]


def pages(count: int) -> int:
    """Bytes of the pages that hold so many."""
    return -(-count // PAGE) * PAGE


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class Ring:
    """RING_BYTES of page-locked memory as slots in turn, each free when its copy is done."""

    def __init__(self, memory: PageLocked) -> None:
        slots = torch.split(memory.take(RING_BYTES).view(torch.bfloat16), PIECE // 2)
        self._slots: deque[tuple[Tensor, Mark | None]] = deque((slot, None) for slot in slots)

    def send(
        self,
        casts: Sequence[Cast],
        copy_in: Callable[[Tensor, Tensor], None],
        mark: Callable[[], Mark],
    ) -> None:
        """Cast piece by piece and launch its copy; `mark` is the point after the copies so far."""
        for target, master in casts:
            pieces = (torch.split(value, PIECE // 2) for value in (target, master))
            for to, piece in zip(*pieces, strict=True):
                slot, sent = self._slots.popleft()
                if sent is not None:
                    until(sent)
                made = slot[: len(piece)]
                made.copy_(piece)
                copy_in(to, made)
                self._slots.append((slot, mark()))


def host_memory(specs: Iterable[Device]) -> HostMemory:
    """Page-locked memory if any of the devices copies by itself."""
    return PageLocked() if any(spec.kind == "cuda" for spec in specs) else HostMemory()


def ring_bytes(tasks: Iterable[Task], kind: str) -> int:
    """Host memory of the ring of a device of this kind that these tasks are trained on."""
    casts = any(shard.cast for task in tasks for shard in task.shards)
    return RING_BYTES * (casts and kind == "cuda")
