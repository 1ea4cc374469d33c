"""Datasets as a task's data: `loader` makes batches by step of a torch dataset.

    step        0    1    2  │ 3    4    5  │ 6 ...       7 samples, batches of 2
    samples    3 0  6 2  5 1 │ 4 1  0 5  3 6│             (each epoch leaves one of them out)

The order of an epoch comes of the seed and its number, and what is drawn for a sample of these and
the sample's number. So any step can be made again at any time, in this process or another one.
"""

import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from executor.errors import RunError, WorkloadError, one_line
from executor.numerics import RandomMode
from executor.workload.loading import Sources
from executor.workload.task import Task

_DRAWS = threading.Lock()  # whoever lends numpy's and Python's generators to a sample holds it
_AHEAD = 2  # batches that each worker process makes beyond those asked for
_KEPT = 4  # batches that other tasks may ask for as well


def loader(
    dataset: Any,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
) -> "Loader":
    """A task's `data` of a dataset with `__len__` and `__getitem__`, of torch or Hugging Face: step
    after step `batch_size` samples, in another order in each epoch where they are to `shuffle`.

    A step has a whole batch: what is left at the end of an epoch is dropped, as by
    DataLoader(drop_last=True). What samples and `collate` (by default torch's) draw from the
    generators of torch, numpy and Python is a function of seed, epoch and sample. In a run so many
    `workers` read ahead, each a process of its own. An iterable dataset with `skip(n)` is a row of
    samples, taken as they come.

    WorkloadError for a dataset or a number that no training can have."""
    kind = type(dataset).__name__
    for name, given, least in (("batch_size", batch_size, 1), ("workers", workers, 0)):
        if type(given) is not int or given < least:
            raise WorkloadError(
                f"loader of {kind}: {name} is {given!r}; it must be a whole number from {least} on"
            )
    if not _indexed(dataset):
        _check_iterable(dataset, kind, shuffle, workers)
    elif len(dataset) < batch_size:
        raise WorkloadError(
            f"loader of {kind}: it has {len(dataset)} samples, and a batch {batch_size}; lower "
            "batch_size"
        )
    return Loader(dataset, batch_size, seed, shuffle, collate or default_collate, workers)


def _indexed(dataset: Any) -> bool:
    """True for a dataset whose samples have numbers."""
    named = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return named and not isinstance(dataset, IterableDataset)


def _check_iterable(dataset: Any, kind: str, shuffle: bool, workers: int) -> None:
    """WorkloadError for a dataset without numbers that cannot begin at any sample."""
    if not hasattr(dataset, "__iter__") or not callable(getattr(dataset, "skip", None)):
        raise WorkloadError(
            f"loader of {kind}: it has neither __len__ and __getitem__ nor __iter__ and skip(n), "
            "so a run could not go on in its middle; give it one of both"
        )
    if shuffle or workers > 1:
        raise WorkloadError(
            f"loader of {kind}: it is iterable, so its samples come in their own order, one after "
            "another; give shuffle=False, shuffle the dataset itself, and leave workers at 0 or 1"
        )


@dataclass(eq=False)
class Loader:
    """See `loader`. Called with a step it gives that step's batch; of a dataset with a length it
    has a length, the batches of an epoch."""

    dataset: Any
    batch_size: int
    seed: int
    shuffle: bool
    collate: Callable[[list[Any]], Any]
    _workers: int  # counts nowhere: the same batches
    _reader: "_Reader | None" = field(default=None, init=False)
    _reading: threading.Lock = field(default_factory=threading.Lock, init=False)
    _order: tuple[int, Tensor] | None = field(default=None, init=False)  # of the latest epoch
    _row: tuple[int, Iterator[Any]] | None = field(default=None, init=False)  # and its next place

    def __call__(self, step: int) -> Any:
        return self._reader.batch(step) if self._reader else self.batch(step)

    def __len__(self) -> int:
        if not _indexed(self.dataset):
            raise TypeError(f"{type(self.dataset).__name__} is iterable and has no length")
        return len(self.dataset) // self.batch_size

    def __reduce__(self) -> tuple[Any, ...]:
        """As a worker process gets it, which reads by itself."""
        settings = self.batch_size, self.seed, self.shuffle, self.collate, 0
        return _received, (Sources(), self.dataset, *settings)

    def start(self) -> None:
        """Let worker processes read from now on, if there are to be some; they start when the first
        batch is asked for."""
        if self._workers and self._reader is None:
            self._reader = _Reader(self, self._workers)

    def stop(self) -> None:
        """End the worker processes."""
        if self._reader:
            self._reader.stop()
            self._reader = None

    def batch(self, step: int) -> Any:
        """The batch of a step, made here and now. RunError names a sample that cannot be had."""
        with self._reading:
            samples = self._samples(step) if _indexed(self.dataset) else self._next(step)
        with _drawing("collate", self.seed, step):
            try:
                return self.collate(samples)
            except Exception as error:
                raise RunError(
                    f"collating {len(samples)} samples of {self.kind}: {one_line(error)}"
                ) from error

    def _samples(self, step: int) -> list[Any]:
        epoch, place = divmod(step, len(self))
        begin = place * self.batch_size
        numbers = self._numbers(epoch)[begin : begin + self.batch_size].tolist()
        return [self._sample(epoch, n, partial(getitem, self.dataset, n)) for n in numbers]

    def _numbers(self, epoch: int) -> Tensor:
        """The samples of an epoch in its order."""
        if self._order is None or self._order[0] != epoch:
            count = len(self.dataset)
            generator = Generator().manual_seed(_seed("order", self.seed, epoch))
            made = torch.randperm(count, generator=generator) if self.shuffle else None
            self._order = epoch, torch.arange(count) if made is None else made
        return self._order[1]

    def _next(self, step: int) -> list[Any]:
        """The samples of a step of an iterable dataset."""
        first = step * self.batch_size
        place, row = self._row or (-1, iter(()))
        if place != first:
            row = iter(self.dataset.skip(first) if first else self.dataset)
        self._row = None  # where it ends in the middle
        numbers = range(first, first + self.batch_size)
        found = [self._sample(0, number, partial(next, row)) for number in numbers]
        self._row = numbers.stop, row
        return found

    def _sample(self, epoch: int, number: int, take: Callable[[], Any]) -> Any:
        with _drawing("sample", self.seed, epoch, number):
            try:
                return take()
            except StopIteration:
                raise IndexError(f"{self.kind} ends before sample {number}") from None
            except (Exception, SystemExit) as error:
                text = f"sample {number} of {self.kind}: {one_line(error)}"
                raise RunError(text) from error

    @property
    def kind(self) -> str:
        """The name of the dataset's class."""
        return type(self.dataset).__name__


def _received(sources: Sources, *given: Any) -> Loader:
    """The loader in a worker process, where the sources of the workload are loaded by now."""
    return Loader(*given)


def _seed(*of: object) -> int:
    """A seed of 64 bits for this."""
    return int.from_bytes(sha256(repr(of).encode()).digest()[:8], "little")


@contextmanager
def _drawing(*of: object) -> Iterator[None]:
    """Meanwhile torch, numpy and Python draw from generators with a seed of this. Worker processes
    have theirs for themselves; elsewhere all three go on behind it as if nobody had drawn."""
    seed = _seed(*of)
    halves = [seed & 0xFFFFFFFF, seed >> 32]
    if get_worker_info():
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(halves)  # noqa: NPY002 -- those who draw from it want it
        yield
        return
    state = Generator().manual_seed(seed).get_state()
    with _DRAWS, RandomMode(state, apart=True):
        parked = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.seed(seed)
        np.random.seed(halves)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(parked[0])
            np.random.set_state(parked[1])  # noqa: NPY002


class _Reader:
    """A loader's batches, made ahead in worker processes, in the order in which steps have followed
    each other so far, or else one after another."""

    def __init__(self, made: Loader, workers: int) -> None:
        self._made, self._workers = made, workers
        # In the main thread a DataLoader would have signals of its own.
        self._thread = ThreadPoolExecutor(1, "loader")
        self._asked: deque[int] = deque()  # steps whose batches are on their way
        self._next, self._latest = 0, -1
        self._after: dict[int, int] = {}  # steps that others than their next ones have followed
        self._batches: Any = None
        self._kept: dict[int, Any] = {}  # the latest

    def batch(self, step: int) -> Any:
        """The batch of a step. RunError where it cannot be had."""
        try:
            found = self._thread.submit(self._take, step).result()
        except Exception as error:
            text = f"the worker processes of the loader of {self._made.kind}: {one_line(error)}"
            raise RunError(text) from error
        if isinstance(found, _Failed):
            raise found.error
        return found

    def stop(self) -> None:
        """End the processes, whatever they do; who waits for a batch gets an error."""
        for process in getattr(self._batches, "_workers", ()):
            process.terminate()
        self._thread.submit(vars(self).pop, "_batches")  # with the queues to them
        self._thread.shutdown(wait=False)

    def _take(self, step: int) -> Any:
        if step in self._kept:  # of another task with the same loader
            return self._kept[step]
        if step != self._latest + 1:
            self._after[self._latest] = step
        self._latest = step
        if step not in self._asked:
            self._next = step
        if self._batches is None:
            self._batches = iter(self._loader())
        number, found = -1, None
        while number != step:
            found = next(self._batches)
            number = self._asked.popleft()
        self._kept = dict([*self._kept.items(), (step, found)][-_KEPT:])
        return found

    def _loader(self) -> DataLoader[Any]:
        return DataLoader(
            _Batches(self._made),
            batch_size=None,
            sampler=self._steps(),
            num_workers=self._workers,
            collate_fn=_same,
            prefetch_factor=_AHEAD,
            multiprocessing_context="spawn",  # a fork would have the devices of this process
            worker_init_fn=_alone,
            generator=Generator(),  # the default one belongs to the models
        )

    def _steps(self) -> Iterator[int]:
        """The steps as they are sent to the processes."""
        while True:
            step = self._next
            self._next = self._after.get(step, step + 1)
            self._asked.append(step)
            yield step


@dataclass(frozen=True)
class _Failed:
    """Stands for a batch that cannot be had."""

    error: Exception


class _Batches(Dataset[Any]):
    """A loader's batches by step, in a worker process."""

    def __init__(self, made: Loader) -> None:
        self._made = made

    def __getitem__(self, step: int) -> Any:
        try:
            return self._made.batch(step)
        except (RunError, IndexError) as error:
            return _Failed(type(error)(str(error)))  # without its causes, which may be of any kind


def _alone(worker: int) -> None:
    """Let signals to a terminal's processes, or a group of them, pass this one by: the run ends it
    when its own rounds have ended."""
    os.setsid()


def _same(batch: Any) -> Any:
    return batch


def samples_of(data: Callable[[Any], Any]) -> int | None:
    """The number of samples of a task's data; None where it is not known."""
    return len(data.dataset) if isinstance(data, Loader) and _indexed(data.dataset) else None


@contextmanager
def reading(tasks: Iterable[Task]) -> Iterator[None]:
    """Meanwhile the loaders of these tasks read ahead, where they have workers."""
    given = [data for task in tasks for data in (task.data, getattr(task.evaluate, "data", None))]
    loaders = [data for data in given if isinstance(data, Loader)]
    for one in loaders:
        one.start()
    try:
        yield
    finally:
        for one in loaders:
            one.stop()
