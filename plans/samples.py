"""Tables beside a plan: the microbatch of every sample of every step.

A table is little-endian uint16, a row for every step, in it an entry for each of the step's samples
in turn: its microbatch. Where samples have moved within windows of steps, an entry says the step as
well. A table is as large as the plan is long, so it is written row by row and never read whole.

    window 2, 3 microbatches    0 2 4 | 3 4 0    two rows: the last of either went to the other step
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.codec import write_parts
from profiles.errors import FormatError

ENTRY = np.dtype("<u2")
MOST = 1 << 16
"""The most microbatches that a step can have, or all steps of a window together."""
_COPIED = 1 << 20  # bytes at once
_GIVE = "give the table that was written with the plan, and keep it beside that"


class Places(NamedTuple):
    """The step of each entry, counted from the first of its window, and its microbatch."""

    steps: NDArray[np.integer]
    microbatches: NDArray[np.integer]


def places(entries: NDArray[np.uint16], window: int, microbatches: int) -> Places:
    """The places that entries say, of windows of so many steps with so many microbatches each."""
    if window == 1:
        return Places(np.zeros_like(entries), entries)
    return Places(*np.divmod(entries, microbatches))


def entries(steps: NDArray[Any], microbatches: NDArray[Any], most: int) -> NDArray[np.int64]:
    """The entries for these places, where a step has `most` microbatches."""
    return np.asarray(steps.astype(np.int64) * most + microbatches)


def table_path(plan: str | Path, task: str) -> Path:
    """The file of a task's table, beside that of its plan."""
    plan = Path(plan)
    return plan.with_name(f"{plan.stem}.{task}.samples")


def write(path: str | Path, rows: Iterable[NDArray[Any]]) -> str:
    """Write a table, rows or blocks of rows as they come, whole or not at all; its sha256.

    ValueError for a number that does not fit; FormatError where no file can be written."""
    return write_parts(path, (_packed(block) for block in rows))


def copy(source: str | Path, path: str | Path) -> None:
    """Write what a table's file has to another, whole or not at all; FormatError where no file can
    be written."""
    with open(source, "rb") as stream:
        write_parts(path, iter(partial(stream.read, _COPIED), b""))


def _packed(block: NDArray[Any]) -> bytes:
    if block.size and not 0 <= int(block.min()) <= int(block.max()) < MOST:
        raise ValueError(f"microbatches {block.min()} .. {block.max()} are not below {MOST}")
    return block.astype(ENTRY).tobytes()


def open_table(path: str | Path, batch: int) -> NDArray[np.uint16]:
    """A table's rows, `batch` samples in each, read from the file as they are used; FormatError
    where the file cannot be read or does not consist of such rows."""
    try:
        entries = np.memmap(path, ENTRY, mode="r")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}; {_GIVE}") from None
    except ValueError:  # empty, or half an entry
        size = Path(path).stat().st_size
        raise FormatError(f"{path}: {size} bytes are no whole entries of 2; {_GIVE}") from None
    if len(entries) % batch:
        raise FormatError(
            f"{path}: {len(entries)} entries are no whole rows of {batch} samples; {_GIVE}"
        )
    return entries.reshape(-1, batch)


def table_sha256(path: str | Path) -> str:
    """The sha256 of a file that is read piece by piece; FormatError where that fails."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
