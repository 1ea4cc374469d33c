"""Measures what an op allocates: the peak of all tensor storages born while it runs."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from executor.numerics.dispatch_mode import OpMode


class MemoryMeter(OpMode):
    """Counts the bytes of storages created in this thread while it is active, backward included.

    Views of storages that existed before count nothing. Frees are seen as they happen, after
    the meter has been left as well; it may be entered again. Memory that a kernel takes and
    returns within itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}

    def restart(self) -> "MemoryMeter":
        """Forget the peak; what is alive counts on."""
        self.peak_bytes = self.live_bytes
        return self

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        for storage in _storages(out):
            key = storage._cdata
            if key not in self._alive and all(key != old._cdata for old in _storages(args, kwargs)):
                self._enter(key, storage)
        return out

    def _enter(self, key: int, storage: torch.UntypedStorage) -> None:
        count = storage.nbytes()
        self._alive[key] = (weakref.ref(storage, lambda _: self._leave(key)), count)
        self.live_bytes += count
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _leave(self, key: int) -> None:
        self.live_bytes -= self._alive.pop(key)[1]


class CpuMeter:
    """The transients of ops that one thread runs, one after another, and the graphs they leave.

    taken_bytes: the most alive at once in the last op, graph_bytes of them in other live graphs.
    """

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.graph_bytes = 0
        self._graphs: dict[object, MemoryMeter] = {}

    @contextmanager
    def op(self, makes: object | None, ends: object | None) -> Iterator[None]:
        """Measure one op; a graph goes on with the meter that saw it made."""
        meter = self._graphs.pop(ends, None) or MemoryMeter()
        self.graph_bytes = sum(graph.live_bytes for graph in self._graphs.values())
        with meter.restart():
            yield
        if makes is not None:
            self._graphs[makes] = meter
        self.taken_bytes = self.graph_bytes + meter.peak_bytes


def _storages(*values: object) -> Iterator[torch.UntypedStorage]:
    """The storages among the arguments of an op, or in what it gives.

    Called for every op of a first round, and Python runs one thread at a time: torch's own walk
    through such trees would hold up all devices."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided:
                yield value.untyped_storage()
        elif isinstance(value, torch.UntypedStorage):
            yield value
        elif isinstance(value, list | tuple):
            yield from _storages(*value)
        elif isinstance(value, dict):
            yield from _storages(*value.values())
