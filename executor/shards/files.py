"""Files in which the states of idle tasks wait: one for each task, its room taken beforehand.

They are working memory like the host store: removed when the run ends, however it does. What a run
is to leave behind are checkpoints.
"""

import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EINVAL, ENOSPC, EOPNOTSUPP
from pathlib import Path

from torch import Tensor

from executor.errors import RunError
from executor.outputs import free_bytes, make_folder, remove, take
from profiles.units import show_bytes

CHUNK = 16 << 20  # bytes of one call
SYNC = 256 << 20  # bytes written that the disk may not have yet

Tick = Callable[[], None]  # called after each chunk; may raise to end the copy


class StateFile:
    """`size` bytes at `path`, open and locked, so that no other run takes it for its own.

    Its room is taken by `reserve`, and given back when the removed file is let go of.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._file = take(path, "give each run a --disk of its own", 0o600)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, 0)

    def reserve(self) -> None:
        """Take the room of all bytes; OSError when there is too little."""
        if not self.size:
            return
        try:
            os.posix_fallocate(self._file, 0, self.size)
        except OSError as error:
            if error.errno not in (EINVAL, EOPNOTSUPP):  # the file system promises no room
                raise
            os.ftruncate(self._file, self.size)

    def write(self, values: Sequence[Tensor], tick: Tick = lambda: None) -> None:
        """Write the values (uint8, `size` bytes together) and return when the disk has them."""

        def put(data: memoryview, begin: int) -> int:
            count = os.pwrite(self._file, data, begin)
            if begin // SYNC < (begin + count) // SYNC:
                os.fdatasync(self._file)
            return count

        self._move(put, values, tick, "written")

    def read(self, values: Sequence[Tensor], tick: Tick = lambda: None) -> None:
        """Read what was written last into `values`, from the disk."""
        self._move(lambda data, at: os.preadv(self._file, [data], at), values, tick, "read")

    def _move(
        self,
        move: Callable[[memoryview, int], int],
        values: Sequence[Tensor],
        tick: Tick,
        verb: str,
    ) -> None:
        """Move chunk after chunk; RunError where less of one is moved than there is."""
        done, why = 0, "no more"
        try:
            for data in _chunks(values):
                count = move(data, done)
                done += count
                if count < len(data):
                    break
                tick()
            else:
                os.fdatasync(self._file)
                self._forget()
                return
        except OSError as error:
            why = str(error.strerror)
        raise RunError(
            f"{self.path}: {done} of {self.size} bytes are {verb}, then {why}; repair or free the "
            "disk, or give another --disk"
        )

    def _forget(self) -> None:
        """Drop the file from the page cache: it is read again much later."""
        with suppress(OSError):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)


def _chunks(values: Sequence[Tensor]) -> Iterator[memoryview]:
    for value in values:
        data = value.numpy().data
        for begin in range(0, len(data), CHUNK):
            yield data[begin : begin + CHUNK]


@contextmanager
def opened(folder: Path, sizes: Mapping[str, int]) -> Iterator[dict[str, StateFile]]:
    """`<folder>/<task>.state` for each task with its bytes, all of their room taken; afterwards
    their names are gone, and whoever still holds a file can go on using it.

    RunError when the disk has too little, UsageError for a folder that cannot be used.
    """
    make_folder(folder)
    with ExitStack() as made:
        files: dict[str, StateFile] = {}
        for task, size in sizes.items():
            files[task] = StateFile(folder / f"{task}.state", size)
            made.callback(remove, files[task].path)
        _reserve(folder, files.values())
        yield files


def _reserve(folder: Path, files: Collection[StateFile]) -> None:
    need, free = sum(file.size for file in files), free_bytes(folder)
    try:
        if need > free:  # of which some file systems know nothing until it is written
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        for file in files:
            file.reserve()
    except OSError as error:
        raise RunError(
            f"{folder}: the states of {len(files)} task(s) that wait on the disk need "
            f"{show_bytes(need)} ({need} bytes), it has {show_bytes(free)} ({free} bytes) free "
            f"({error.strerror}); free the disk, give another --disk, or build with more "
            "--host-memory"
        ) from None
