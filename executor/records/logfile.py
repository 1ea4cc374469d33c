"""The file of a run log, locked while a run writes it, and never overwritten silently."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from executor.errors import LogError, UsageError
from executor.outputs import locked, make_folder, part_of
from plans.runlog import Line, encode
from profiles import console

_CHECKPOINT = b'{"type":"checkpoint"'  # how a line begins from which a task can go on


class LogFile:
    """Lines in `<out>.part`, from `begin` to `close`, which gives the file its name."""

    def __init__(self, out: Path, overwrite: bool) -> None:
        self._out = out
        self._part = part_of(out)
        self._overwrite = overwrite
        self._file: BinaryIO | None = None

    def begin(self, lines: Iterable[Line], *, goes_on: bool) -> None:
        """Make the file, which begins with these lines. The log of a killed run, and one by which a
        run can go on, gets another name first, unless all is to be written over, or the run goes
        on and the lines are what stands of that log."""
        new = self._part.with_name(f"{self._part.name}.new") if goes_on else self._part
        try:
            if not self._overwrite and not goes_on:
                self._set_aside()
            self._file = open(new, "wb")  # noqa: SIM115
            self.write(list(lines), sync=goes_on)
            new.replace(self._part)
        except OSError as error:
            raise UsageError(f"{self._out}: cannot be written: {error.strerror}") from None

    def write(self, lines: Sequence[Line], *, sync: bool = False) -> None:
        """Write the lines; `sync`: return when the disk has them."""
        if self._file is None or not lines:
            return
        try:
            self._file.write(encode(lines))
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self.release()  # where what is still buffered fails once more
            raise LogError(f"{self._out}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """The log is complete."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
            self._part.replace(self._out)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}; the log is in {self._part}"
            raise LogError(f"{self._out}: {reason}") from None

    def release(self) -> None:
        """Let go of the file, complete or not."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _set_aside(self) -> None:
        part = self._part.is_file() and self._part.stat().st_size > 0
        if not part and not _names_checkpoints(self._out):
            return
        number, name = 1, self._out
        while name.exists() or part_of(name).exists():
            name = self._out.with_name(f"{self._out.stem}.{number}{self._out.suffix}")
            number += 1
        if part:
            target = self._part.replace(part_of(name))
            console.warn(f"{self._part} is of a run that was killed; it is {target} now")
        if _names_checkpoints(self._out):
            target = self._out.replace(name)
            console.warn(f"{self._out} names checkpoints to go on from; it is {target} now")


@contextmanager
def opened(out: Path | None, overwrite: bool) -> Iterator[LogFile | None]:
    """The log at `out`, which no other run may write meanwhile."""
    if out is None:
        yield None
        return
    make_folder(out.parent)
    lock = out.with_name(f"{out.name}.lock")
    with locked(lock, "give each run a log of its own, -o runs/y.jsonl"):
        log = LogFile(out, overwrite)
        try:
            yield log
        finally:
            log.release()


def _names_checkpoints(log: Path) -> bool:
    try:
        with open(log, "rb") as lines:
            return any(line.startswith(_CHECKPOINT) for line in lines)
    except OSError:
        return False
