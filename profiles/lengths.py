"""The lengths of a task's samples: little-endian uint32 in a file beside the profile, and another
one of those of its evaluation.

They are many, so whoever reads them gets them mapped into memory.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.codec import sha256, write_atomic
from profiles.errors import FormatError
from profiles.schema import Lengths, Task

_KIND = np.dtype("<u4")
_SEVERAL = 16  # samples of a step, of which some may be short


def path_of(profile: str | Path, task: str) -> Path:
    """The file with the lengths of a task of the profile in this file."""
    return Path(profile).with_name(f"{Path(profile).stem}.{task}.lengths")


def held_out(task: str) -> str:
    """The name for the samples that a task is evaluated on, beside the task's own name for those
    that it is trained on."""
    return f"{task}.evaluation"


def describe(lengths: ArrayLike, why_not: str = "") -> Lengths:
    """The entry of a profile about these lengths."""
    flat = np.ascontiguousarray(lengths, _KIND)
    tokens = int(flat.sum(dtype=np.int64))
    return Lengths(sha256(flat.data), len(flat), tokens, int(flat.max()), why_not)


def save(profile: str | Path, task: str, lengths: ArrayLike) -> None:
    """Write a task's lengths beside its profile."""
    write_atomic(path_of(profile, task), np.ascontiguousarray(lengths, _KIND).data)


def load(profile: str | Path, tasks: Iterable[Task]) -> dict[str, NDArray[np.uint32]]:
    """The lengths of all tasks that have some, by name, and of the samples of their evaluations,
    mapped into memory. FormatError where they are missing or others than the profile says."""
    found: dict[str, NDArray[np.uint32]] = {}
    for task in tasks:
        for name, said in (
            (task.name, task.lengths),
            (held_out(task.name), task.evaluation_lengths),
        ):
            if said:
                found[name] = _load(profile, name, said)
    return found


def _load(profile: str | Path, name: str, said: Lengths) -> NDArray[np.uint32]:
    path = path_of(profile, name)
    again = "profile again, which writes both, or copy this file together with its profile"
    try:
        size = path.stat().st_size
        if size != _KIND.itemsize * said.samples:
            raise FormatError(
                f"{path}: has {size} bytes, the {said.samples} lengths of task {name} have "
                f"{_KIND.itemsize * said.samples}; {again}"
            )
        mapped = np.memmap(path, _KIND, "r")
    except OSError as error:
        raise FormatError(
            f"{path}: the lengths of task {name} cannot be read: {error.strerror}; {again}"
        ) from None
    if (found := sha256(mapped.data)) != said.sha256:
        raise FormatError(
            f"{path}: its sha256 is {found[:12]}…, that of the lengths of task {name} in "
            f"{profile} {said.sha256[:12]}…; {again}"
        )
    return mapped


def reorder(lengths: ArrayLike, batch: int, window: int) -> NDArray[np.uint32]:
    """All samples in another order, by number: those of each window of so many steps of `batch`
    samples `by_length`. No sample leaves its window."""
    own, size = np.asarray(lengths), batch * window
    found = np.empty(len(own), _KIND)
    for begin in range(0, len(own), size):
        part = own[begin : begin + size].astype(np.int64)
        sizes = np.diff(np.arange(0, len(part) + batch, batch).clip(max=len(part)))
        found[begin : begin + size] = begin + np.concatenate(by_length(part, sizes))
    return found


def by_length(lengths: NDArray[np.int64], sizes: Iterable[int]) -> list[NDArray[np.intp]]:
    """The samples of each step, by number, where steps have so many: from the longest on, so that
    long ones meet in few steps. Each but the first takes a quarter from the shortest, with which
    the others fill pipelines evenly; not one of few samples, where each is much of a pipeline.

        by length          L L L L  l l l  m m m  s s
        in three steps     L L L L | l l l s | m m m s
    """
    left, found = np.argsort(-lengths, kind="stable"), list[NDArray[np.intp]]()
    for size in sizes:
        short = len(left) - (size // 4 if found and size >= _SEVERAL else 0)
        long = size - len(left) + short
        found.append(np.concatenate((left[:long], left[short:])))
        left = left[long:short]
    return found


def of_step(step: int, batch: int, samples: int, steps: int = 1) -> NDArray[np.int64]:
    """The numbers of the samples of a step, of so many samples in all; or of several from it on."""
    return (step * batch + np.arange(steps * batch)) % samples
