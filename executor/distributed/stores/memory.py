"""Memory that all processes of a node share: its host store. Its pages are taken when somebody
first touches them.

It has no name in any file system, so that nothing of it is left when they are killed, and the size
of /dev/shm does not limit it. Other processes map it by way of its descriptor in /proc.
"""

import mmap
import os

import torch
from torch import Tensor

from executor.errors import RunError

PAGE = mmap.PAGESIZE


class SharedMemory:
    """So many bytes, `flat` (uint8), mapped here; `path`: where others find them meanwhile."""

    def __init__(self, count: int, path: str = "") -> None:
        size = max(count, 1)
        try:
            made = os.open(path, os.O_RDWR) if path else os.memfd_create("gantry-host-store")
            if not path:
                os.ftruncate(made, size)
            self._map = mmap.mmap(made, size)
        except OSError as error:
            raise RunError(
                f"{count} bytes of host memory cannot be shared between processes: {error.strerror}"
            ) from None
        self._descriptor = made
        self.path = path or f"/proc/{os.getpid()}/fd/{made}"
        self.flat: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)[:count]
        self.words = memoryview(self._map)[: size // 8 * 8].cast("q")
        self.address = self.flat.data_ptr()

    def release(self) -> None:
        """All have mapped it: nobody else can from now on."""
        os.close(self._descriptor)

    def give_back(self, begin: int, end: int) -> None:
        """Take no memory for these bytes any more, as far as they have pages of their own."""
        begin, end = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
        if begin < end:
            self._map.madvise(mmap.MADV_REMOVE, begin, end - begin)
