"""Tables beside a plan: the microbatch of every sample of every step.

A table is little-endian uint16, a row for every step, in it an entry for each of the step's samples
in turn: its microbatch. Where samples come in another order than their own, this stands before the
rows: the number of every sample in turn, little-endian uint32. A table is as large as the plan is
long, so it is written row by row and never read whole.
"""

from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.codec import write_parts
from profiles.errors import FormatError

ENTRY, NUMBER = np.dtype("<u2"), np.dtype("<u4")
MOST = 1 << 16
"""The most microbatches that a step can have."""
_COPIED = 1 << 20  # bytes at once
_GIVE = "give the table that was written with the plan, and keep it beside that"


def table_path(plan: str | Path, task: str) -> Path:
    """The file of a task's table, beside that of its plan."""
    plan = Path(plan)
    return plan.with_name(f"{plan.stem}.{task}.samples")


def write(
    path: str | Path, rows: Iterable[NDArray[Any]], order: NDArray[np.uint32] | None = None
) -> str:
    """Write a table, rows or blocks of rows as they come, whole or not at all; its sha256. order:
    of all samples, where it is not their own.

    ValueError for a number that does not fit; FormatError where no file can be written."""
    head = [] if order is None else [order.astype(NUMBER).tobytes()]
    return write_parts(path, chain(head, map(_packed, rows)))


def copy(source: str | Path, path: str | Path) -> None:
    """Write what a table's file has to another, whole or not at all; FormatError where no file can
    be written."""
    with open(source, "rb") as stream:
        write_parts(path, iter(partial(stream.read, _COPIED), b""))


def _packed(block: NDArray[Any]) -> bytes:
    if block.size and not 0 <= int(block.min()) <= int(block.max()) < MOST:
        raise ValueError(f"microbatches {block.min()} .. {block.max()} are not below {MOST}")
    return block.astype(ENTRY).tobytes()


def open_table(path: str | Path, batch: int, ordered: int = 0) -> NDArray[np.uint16]:
    """A table's rows, `batch` samples in each, read from the file as they are used, behind the
    order of so many samples; FormatError where the file cannot be read or does not consist of
    these."""
    try:
        found = np.memmap(path, ENTRY, mode="r")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}; {_GIVE}") from None
    except ValueError:  # empty, or half an entry
        size = Path(path).stat().st_size
        raise FormatError(f"{path}: {size} bytes are no whole entries of 2; {_GIVE}") from None
    entries = found[ordered * NUMBER.itemsize // ENTRY.itemsize :]
    if not len(entries) or len(entries) % batch:
        raise FormatError(
            f"{path}: {len(entries)} entries are no whole rows of {batch} samples; {_GIVE}"
        )
    return entries.reshape(-1, batch)


def open_order(path: str | Path, ordered: int) -> NDArray[np.uint32] | None:
    """The order of so many samples, which their table begins with; None if it has none."""
    return np.memmap(path, NUMBER, mode="r", shape=(ordered,)) if ordered else None
