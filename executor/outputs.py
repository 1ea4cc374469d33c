"""Files that a run writes: locked against other runs, and tried before the first step.

Locks are on files, so the system releases them when the process ends, however it does. Of two runs
that would write the same files the second one is refused.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit

from executor.errors import UsageError
from profiles import console
from profiles.units import show_bytes


def part_of(target: Path) -> Path:
    """The path of a file until it is whole."""
    return target.with_name(f"{target.name}.part")


def remove(path: Path) -> None:
    """Remove the file, if that can be."""
    with suppress(OSError):
        path.unlink()


@contextmanager
def whole(part: Path) -> Iterator[None]:
    """Remove the part of a file if what writes it fails, or is interrupted."""
    try:
        yield
    except BaseException:
        remove(part)
        raise


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write below `folder`."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def make_folder(folder: Path) -> None:
    """Make the folder if there is none; UsageError if that cannot be."""
    with _told(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)


def _take(path: Path, remedy: str) -> int:
    """Open `path`, made if there is none, and lock it; its descriptor, which holds the lock.

    UsageError with the remedy where another run has it. Where the file system knows no locks a
    line on stderr says so.
    """
    while True:
        with _told(path, "written"):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
        os.close(file)  # its last holder has removed the name meanwhile


@contextmanager
def locked(path: Path, remedy: str) -> Iterator[None]:
    """Hold the lock file `path`, and remove it afterwards."""
    file = _take(path, remedy)
    try:
        yield
    finally:
        remove(path)
        os.close(file)


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    """UsageError that says what cannot be done with the path."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be {what}: {error.strerror}; give another path") from None


def _is_there(path: Path, file: int) -> bool:
    """True if `path` is still the name of the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False


def try_folder(folder: Path, sizes: Mapping[str, int], beside: int = 0) -> None:
    """UsageError unless files of these names and about so many bytes can be written in the folder,
    which is made. beside: of those, the bytes that are ever there twice at the same time, before
    new files take the place of old ones. Nothing is left there."""
    make_folder(folder)
    limit = getrlimit(RLIMIT_FSIZE)[0]
    known = 0
    for name, size in sizes.items():
        target = folder / name
        known += _try(target)
        if limit != RLIM_INFINITY and size > limit:
            raise UsageError(
                f"{target}: cannot be written: it will have about {size} bytes, and no file may "
                f"have more than {limit}; raise the limit (ulimit -f)"
            )
    need, free = sum(sizes.values()) + beside - known, free_bytes(folder)
    if need > free:
        raise UsageError(
            f"{folder}: cannot be written: {len(sizes)} file(s) take about {show_bytes(need)} "
            f"({need} bytes){', new ones beside old ones' if beside else ''}, it has "
            f"{show_bytes(free)} ({free} bytes) free; free the disk or give another folder"
        )


def _try(target: Path) -> int:
    """UsageError unless a file can be made there; the bytes of one that is there."""
    part = part_of(target)
    with _told(target, "written"):
        if target.is_dir():
            raise UsageError(f"{target}: cannot be written: it is a folder")
        new = not part.exists()
        with open(part, "ab"):
            pass
        if new:
            part.unlink()
        return target.stat().st_size if target.exists() else 0
