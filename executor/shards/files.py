"""Files in which the states of idle tasks wait: one for each task, its room taken beforehand.

They are working memory like the host store: removed when the run ends, however it does. What a run
is to leave behind are checkpoints.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from errno import EINVAL, EOPNOTSUPP
from pathlib import Path

from torch import Tensor

from executor.errors import RunError
from executor.outputs import free_bytes, make_folder, take
from profiles.units import show_bytes

CHUNK = 16 << 20  # bytes of one call
SYNC = 256 << 20  # bytes written that the disk may not have yet

Tick = Callable[[], None]  # called after each chunk; may raise to end the copy


def _nothing() -> None:
    pass


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

    def write(self, values: Sequence[Tensor], tick: Tick = _nothing) -> None:
        """Write the values (uint8, `size` bytes together) and return when the disk has them."""
        done = synced = 0
        try:
            for data in _chunks(values):
                done += os.pwrite(self._file, data, done)
                if done - synced >= SYNC:
                    os.fdatasync(self._file)
                    synced = done
                tick()
            os.fdatasync(self._file)
        except OSError as error:
            raise RunError(
                f"{self.path}: {done} of {self.size} bytes are written, then {error.strerror}; "
                "repair or free the disk, or give another --disk"
            ) from None
        self._forget()

    def read(self, values: Sequence[Tensor], tick: Tick = _nothing) -> None:
        """Read what was written last into `values`, from the disk."""
        done = 0
        reason = "the file ends"
        try:
            for data in _chunks(values):
                count = os.preadv(self._file, [data], done)
                done += count
                if count < len(data):
                    break
                tick()
        except OSError as error:
            reason = str(error.strerror)
        if done < self.size:
            raise RunError(
                f"{self.path}: {done} of {self.size} bytes are read, then {reason}; "
                "repair the disk or give another --disk"
            )
        self._forget()

    def remove(self) -> None:
        """Take the name away; the file can be used as before."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _forget(self) -> None:
        """Drop the file from the page cache: it is read again much later."""
        with suppress(OSError):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)


def _chunks(values: Sequence[Tensor]) -> Iterator[memoryview]:
    for value in values:
        data = value.numpy().data
        for begin in range(0, len(data), CHUNK):
            yield data[begin : begin + CHUNK]


def open_files(folder: Path, sizes: Mapping[str, int]) -> dict[str, StateFile]:
    """`<folder>/<task>.state` for each task with its bytes, all of their room taken.

    RunError when the disk has too little, UsageError for a folder that cannot be used; then
    nothing is left there.
    """
    make_folder(folder)
    made: dict[str, StateFile] = {}
    try:
        for task, size in sizes.items():
            made[task] = StateFile(folder / f"{task}.state", size)
        _reserve(folder, made)
    except BaseException:
        remove(made)
        raise
    return made


def remove(files: Mapping[str, StateFile]) -> None:
    """Take the names away; whoever still holds a file can go on using it."""
    for file in files.values():
        file.remove()


def _reserve(folder: Path, files: Mapping[str, StateFile]) -> None:
    need, free = sum(file.size for file in files.values()), free_bytes(folder)
    why = ""
    try:
        if need <= free:
            for file in files.values():
                file.reserve()
            return
    except OSError as error:
        why = f" ({error.strerror})"
    raise RunError(
        f"{folder}: the states of {len(files)} task(s) that wait on the disk need "
        f"{show_bytes(need)} ({need} bytes), it has {show_bytes(free)} ({free} bytes) free"
        f"{why}; free the disk, give another --disk, or build with more --host-memory"
    )
