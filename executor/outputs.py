"""Whether what a run is to leave behind can be written; found out before its first step."""

from collections.abc import Mapping
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit

from executor import checkpoint
from executor.disk import free_bytes
from executor.errors import UsageError
from profiles.units import show_bytes


def try_folder(folder: Path, sizes: Mapping[str, int]) -> None:
    """UsageError unless files of these names and about so many bytes can be written in the folder,
    which is made. Nothing is left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None
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
    need, free = sum(sizes.values()) - known, free_bytes(folder)
    if need > free:
        raise UsageError(
            f"{folder}: cannot be written: {len(sizes)} task(s) take about {show_bytes(need)} "
            f"({need} bytes), it has {show_bytes(free)} ({free} bytes) free; free the disk or give "
            "another folder"
        )


def _try(target: Path) -> int:
    """UsageError unless a file can be made there; the bytes of one that is there."""
    part = checkpoint.part_of(target)
    try:
        if target.is_dir():
            raise UsageError(f"{target}: cannot be written: it is a folder")
        new = not part.exists()
        with open(part, "ab"):
            pass
        if new:
            part.unlink()
        return target.stat().st_size if target.exists() else 0
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
