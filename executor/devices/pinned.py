"""Host memory that devices reach by themselves: page-locked, for their copies."""

import os
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from executor.devices.device import aligned
from executor.errors import RunError

PAGE = os.sysconf("SC_PAGE_SIZE")
_PORTABLE = 1  # cudaHostRegisterPortable: locked for every device


class PageLocked:
    """Host memory, locked at its size in whole pages.

    Torch's own pinned allocator rounds every block up to a power of two. A page can be locked only
    once, so no two of these share one.
    """

    def __init__(self) -> None:
        self._locked: list[Tensor] = []

    def take(self, count: int) -> Tensor:
        size = pages(count)
        raw = aligned(size + PAGE)
        skip = -raw.data_ptr() % PAGE
        flat = raw[skip : skip + count]
        if count:
            code = _runtime().cudaHostRegister(flat.data_ptr(), size, _PORTABLE)
            if int(code):
                raise RunError(
                    f"{size} bytes of host memory cannot be page-locked (CUDA error {int(code)}); "
                    "raise the limit of locked memory (ulimit -l) or free host memory"
                )
            self._locked.append(flat)
        return flat

    def close(self) -> None:
        with suppress(RuntimeError):
            for flat in self._locked:
                _runtime().cudaHostUnregister(flat.data_ptr())
        self._locked = []


def pages(count: int) -> int:
    """Bytes of the pages that hold so many."""
    return -(-count // PAGE) * PAGE


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
