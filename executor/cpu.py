"""Emulated devices: memory of the host with a budget, and copies that last as long as on a link.

A CPU device is emulated when its plan says so: its copies are paced to the link's rate, so that
spilling costs what it would cost on such a link.
"""

import time
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from executor.device import Mark, QueueKind, aligned, use_threads
from executor.meter import CpuMeter
from executor.rng import CpuSource, Source
from plans.schema import Buffer, Device
from profiles.schema import Emulation

_COARSE_S = 60e-6  # a sleep may last this much longer than asked for


class Now:
    """A mark that was reached as it was made."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = time.perf_counter()

    def ready(self) -> bool:
        return True

    def seconds(self) -> float:
        return self._seconds


class CpuQueue:
    """Ops run in the calling thread, with `threads` threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def enter(self) -> None:
        use_threads(self._threads)

    def mark(self) -> Now:
        return Now()

    def wait(self, mark: Mark, check: Callable[[], None]) -> None:
        """Nothing: marks of CPU queues are reached as they are made."""


class CpuDevice:
    """A device whose memory is host memory. Buffers of a plan are views of its one slab, which is
    as large as the largest of the programs that run there."""

    def __init__(self, spec: Device, slab_bytes: int) -> None:
        self.spec = spec
        self.slab = aligned(slab_bytes)
        self.where = torch.device("cpu")
        self.source: Source = CpuSource()

    def view(self, buffer: Buffer) -> Tensor:
        return self.slab[buffer.offset : buffer.offset + buffer.bytes]

    def empty(self, count: int) -> Tensor:
        return aligned(count)

    def queue(self, kind: QueueKind) -> CpuQueue:
        return CpuQueue(self.spec.threads if kind in ("compute", "host") else 1)

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        rate = self.spec.emulation.h2d_bytes_per_s if self.spec.emulation else 0
        paced_copy(target, source, rate, self.spec.emulation)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        rate = self.spec.emulation.d2h_bytes_per_s if self.spec.emulation else 0
        paced_copy(target, source, rate, self.spec.emulation)

    def later(self, value: Tensor) -> Callable[[], float]:
        return cast("Callable[[], float]", value.item)

    def meter(self) -> CpuMeter:
        return CpuMeter()

    def limit(self, beside: int) -> None:
        """Nothing to limit: the slab is all there is, and transients are measured."""

    def allocations(self) -> int:
        return 0  # there is no allocator between torch and the host's

    def close(self) -> None:
        """Nothing to give back."""


class Pageable:
    """Ordinary memory: CPU devices copy in the calling thread."""

    def take(self, count: int) -> Tensor:
        return aligned(count)

    def close(self) -> None:
        """Nothing to give back."""


def paced_copy(target: Tensor, source: Tensor, rate: int, emulation: Emulation | None) -> None:
    """Copy, and return no sooner than the emulated link would: latency + bytes / rate."""
    start = time.perf_counter()
    target.copy_(source)
    if emulation:
        wait_until(start + emulation.latency_us / 1e6 + source.numel() / rate)


def wait_until(deadline: float) -> None:
    """Return at `deadline`, a time.perf_counter() value, as precisely as a busy wait would."""
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left - _COARSE_S if left > _COARSE_S else 0)
