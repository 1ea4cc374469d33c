"""The log of a run as it is written: each line whole, nothing behind a line that failed."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from executor.errors import LogError
from executor.outputs import part_of
from plans import runlog
from plans.runlog import Line, encode


def _appending(path: str, flags: int) -> int:
    """Open a file of which others may write at the end as well."""
    return os.open(path, flags | os.O_APPEND, 0o666)


class PartLog:
    """The log of one of several processes, in the run's folder if there is one, begun with its
    first lines. Process 0 puts it into the log of the run (`RunFolder.merge`)."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._path = folder and runlog.part_of(folder, rank)
        self._file: LogFile | None = None

    def note(self, lines: Sequence[Line]) -> None:
        """Write lines; LogError where that fails."""
        if not (self._path and lines):
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = LogFile(self._path, ())
        self._file.write(lines)

    def close(self) -> None:
        if self._file:
            self._file.close()


class LogFile:
    """A log that begins with these lines; it replaces the one that was there."""

    def __init__(self, path: Path, lines: Sequence[Line]) -> None:
        self._path = path
        try:
            self._file = open(part_of(path), "wb", opener=_appending)  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from None
        self.write(lines, sync=True)
        part_of(path).replace(path)

    def write(self, lines: Sequence[Line], *, sync: bool = False) -> None:
        """Write the lines; `sync`: return when the disk has them."""
        if self._file.closed or not lines:
            return
        try:
            self._file.write(encode(lines))
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self.close()  # where what is still buffered fails once more
            raise self._error(error) from None

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _error(self, error: OSError) -> LogError:
        return LogError(f"{self._path}: cannot be written: {error.strerror}")
