"""Emulated devices: memory of the host with a budget, and copies that last as long as on a link.

A CPU device is emulated when its plan says so: its copies are paced to the link's rate, so that
spilling costs what it would cost on such a link. How ops are paced, `pace` says.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from executor.devices.device import Mark, QueueKind, aligned, use_threads
from executor.devices.pace import wait_until
from executor.numerics import Cast, CpuMeter, CpuSource, Source
from plans.schema import Buffer, Device
from profiles.schema import Emulation


class Now:
    """A mark that is reached as it is made, or was at `seconds`."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = time.perf_counter() if seconds is None else seconds

    def ready(self) -> bool:
        return True

    def seconds(self) -> float:
        return self._seconds


_here = threading.local()  # due: when the op that the thread runs ends at the soonest, or None


class CpuQueue:
    """Ops run in the calling thread, with `threads` threads.

    `ahead`: as on a device that ops are launched into beforehand, they begin when the queue is
    free and what they wait for has ended. The thread comes to them a little later and catches up,
    since they last longer than their work; where it does not, they end when it is done.
    """

    def __init__(self, threads: int, *, ahead: bool = False) -> None:
        self._threads, self._ahead = threads, ahead
        self._free = 0.0  # when the next op can begin

    def enter(self) -> None:
        use_threads(self._threads)
        self._free = time.perf_counter()

    def mark(self) -> Now:
        return Now()

    def wait(self, mark: Mark, check: Callable[[], None]) -> None:
        """Marks of CPU queues are reached as they are made."""
        self._free = max(self._free, mark.seconds())

    def begin(self) -> Now:
        start = Now(self._free if self._ahead else None)
        _here.due = start.seconds()
        return start

    def end(self, start: Mark, least_us: int, check: Callable[[], None]) -> Now:
        due = max(_here.due, start.seconds() + least_us / 1e6)
        _here.due = None
        late = time.perf_counter() >= due
        wait_until(due, check)
        end = Now(None if late else due)
        self._free = end.seconds()
        return end


class Link:
    """One direction of an emulated link: its copies go one after another, whoever makes them."""

    def __init__(self, bytes_per_s: int, latency_us: int) -> None:
        self._rate, self._latency_s = bytes_per_s, latency_us / 1e6
        self._free = 0.0  # when it has moved all bytes that were given to it
        self._lock = threading.Lock()

    def carry(self, count: int, work: Callable[[], object]) -> None:
        """Do the work, and return no sooner than the link would have moved so many bytes: latency
        + bytes / rate, after the copies that came before. In an op of a queue it is the op that
        ends no sooner."""
        due = getattr(_here, "due", None)
        with self._lock:
            begin = max(time.perf_counter() if due is None else due, self._free)
            self._free = begin + count / self._rate
            end = self._free + self._latency_s
        work()
        if due is None:
            wait_until(end)
        else:
            _here.due = end


class Links(NamedTuple):
    """Both directions between the host and a device, or devices that share them."""

    h2d: Link
    d2h: Link

    @classmethod
    def of(cls, emulation: Emulation) -> "Links":
        rates = emulation.h2d_bytes_per_s, emulation.d2h_bytes_per_s
        return cls(*(Link(rate, emulation.latency_us) for rate in rates))


class CpuDevice:
    """A device whose memory is host memory. Buffers of a plan are views of its one slab, which is
    as large as the largest of the programs that run there. `links`: those of its group."""

    def __init__(self, spec: Device, slab_bytes: int, links: Links | None = None) -> None:
        self.spec = spec
        self._links = links or (Links.of(spec.emulation) if spec.emulation else None)
        self.slab = aligned(slab_bytes)
        self.where = torch.device("cpu")
        self.slack_bytes = 0
        self.source: Source = CpuSource()

    def view(self, buffer: Buffer) -> Tensor:
        return self.slab[buffer.offset : buffer.offset + buffer.bytes]

    def empty(self, count: int) -> Tensor:
        return aligned(count)

    def queue(self, kind: QueueKind) -> CpuQueue:
        works, emulation = kind in ("compute", "host"), self.spec.emulation
        ahead = emulation is not None and (not works or emulation.compute_slowdown > 1)
        return CpuQueue(self.spec.threads if works else 1, ahead=ahead)

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        _carry(self._links and self._links.h2d, source.numel(), partial(target.copy_, source))

    def cast_in(self, casts: Sequence[Cast]) -> None:
        count = sum(target.nbytes for target, _ in casts)
        _carry(self._links and self._links.h2d, count, partial(_cast, casts))

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        _carry(self._links and self._links.d2h, source.numel(), partial(target.copy_, source))

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


def _carry(link: Link | None, count: int, work: Callable[[], object]) -> None:
    """Do the work, and let the link take the time of so many bytes if there is one."""
    if link:
        link.carry(count, work)
    else:
        work()


def _cast(casts: Sequence[Cast]) -> None:
    for target, master in casts:
        target.copy_(master)
