"""Locks on files, which the system takes back when the process ends, however it does.

Two runs that write the same files would destroy each other's: the second one is refused.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from executor.errors import UsageError
from profiles import console


def take(path: Path, remedy: str, mode: int = 0o666) -> int:
    """Open `path`, made if there is none, and lock it; its descriptor, which holds the lock.

    UsageError with the remedy where another run has it. Where the file system knows no locks a
    line on stderr says so.
    """
    while True:
        file = _open(path, mode)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise UsageError(f"{path}: another run uses it; {remedy}") from None
        except OSError as error:
            console.warn(f"{path}: cannot be locked: {error.strerror}; let no other run use it")
            return file
        if _is_there(path, file):
            return file
        os.close(file)  # who had it before has taken the name away meanwhile


@contextmanager
def locked(path: Path, remedy: str) -> Iterator[None]:
    """Hold the lock file `path`, and remove it afterwards."""
    file = take(path, remedy)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def _open(path: Path, mode: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _is_there(path: Path, file: int) -> bool:
    """True if `path` is still the name of the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False
