"""Emulated devices: memory of the host with a budget, and copies that last as long as on a link.

A CPU device is emulated when its plan says so: its copies are paced to the link's rate, so that
spilling costs what it would cost on such a link. How ops are paced, `pace` says.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from executor.devices.device import Device, Mark, Put, Queue, QueueKind, aligned, use_threads
from executor.devices.pace import wait_until
from executor.numerics import Cast, CpuMeter, CpuSource
from plans.schema import Device as Spec
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


_DELAY_S = 0.002  # that a thread may come late to a copy, as on busy cores

_here = threading.local()  # due: when the op that the thread runs ends at the soonest, or None


class CpuQueue(Queue):
    """Ops run in the calling thread, with `threads` threads.

    `ahead`: as on a device that ops are launched into beforehand, they begin when the queue is
    free and what they wait for has ended. The thread comes to them a little later and catches up,
    since they last longer than their work; where it does not, they end when it is done, or no more
    than `delay_s` before: so late a thread may come, and what waits for the op catch up for it.
    """

    def __init__(self, threads: int, *, ahead: bool = False, delay_s: float = 0.0) -> None:
        self._threads, self._ahead, self._delay_s = threads, ahead, delay_s
        self._free = 0.0  # when the next op can begin
        self._came = 0.0  # when the thread came to the latest one

    def enter(self) -> None:
        use_threads(self._threads)
        self._free = time.perf_counter()

    def mark(self) -> Now:
        return Now()

    def wait(self, mark: Mark, check: Callable[[], None]) -> None:
        """Marks of CPU queues are reached as they are made."""
        self._free = max(self._free, mark.seconds())

    def begin(self) -> Now:
        self._came = time.perf_counter()
        start = Now(self._free if self._ahead else self._came)
        _here.due = start.seconds()
        return start

    def end(self, start: Mark, least_us: int, check: Callable[[], None]) -> Now:
        due = max(_here.due, start.seconds() + least_us / 1e6)
        _here.due = None
        now = time.perf_counter()
        due = max(due, start.seconds() + now - self._came, now - self._delay_s)
        wait_until(due, check)
        self._free = due
        return Now(due)


class Link:
    """One direction of an emulated link: its copies go one after another, whoever makes them."""

    def __init__(self, bytes_per_s: int, latency_us: int) -> None:
        self._rate, self._latency_s = bytes_per_s, latency_us / 1e6
        self._free = 0.0  # when it has moved all bytes that were given to it
        self._lock = threading.Lock()

    def carry(self, copies: Sequence[Cast]) -> None:
        """Copy, and return no sooner than the link would have moved what is written: latency +
        bytes / rate, after the copies that came before. In an op of a queue it is the op that ends
        no sooner."""
        end = self.book(sum(target.nbytes for target, _ in copies))
        _copy(copies)
        last_until(end)

    def book(self, count: int) -> float:
        """When the link would have moved so many bytes more, as time.perf_counter() counts."""
        due = getattr(_here, "due", None)
        with self._lock:
            begin = max(time.perf_counter() if due is None else due, self._free)
            self._free = begin + count / self._rate
            return self._free + self._latency_s


def last_until(end: float) -> None:
    """Let the op of a queue last until then; outside of queues, wait."""
    if getattr(_here, "due", None) is None:
        wait_until(end)
    else:
        _here.due = end


Links = tuple[Link, Link]  # from the host to a device and back; devices may share them


def links_of(emulation: Emulation) -> Links:
    """Links as fast as those of the emulated device."""
    latency_us = emulation.latency_us
    return Link(emulation.h2d_bytes_per_s, latency_us), Link(emulation.d2h_bytes_per_s, latency_us)


class CpuDevice(Device):
    """A device whose memory is host memory. Buffers of a plan are views of its one slab, which is
    as large as the largest of the programs that run there. `links`: those of its group; without
    any, copies take the time that they take."""

    def __init__(self, spec: Spec, slab_bytes: int, links: Links | None = None) -> None:
        self.spec = spec
        self.slab = aligned(slab_bytes)
        self.source = CpuSource()
        self._in, self._out = (link.carry for link in links) if links else (_copy, _copy)
        known = spec.emulation
        rate = known.p2p_bytes_per_s if known else None
        across = links[1] if links else None
        self._across = Link(rate, known.latency_us) if known and rate else across

    def queue(self, kind: QueueKind, peer: int | None = None) -> CpuQueue:
        emulation = self.spec.emulation
        slow = emulation is not None and emulation.compute_slowdown > 1
        if kind in ("compute", "host"):
            return CpuQueue(self.spec.threads, ahead=slow)
        return CpuQueue(1, ahead=emulation is not None, delay_s=_DELAY_S if slow else 0.0)

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        self._in([(target, source)])

    def cast_in(self, casts: Sequence[Cast]) -> None:
        self._in(casts)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        self._out([(target, source)])

    def send(self, target: Tensor, source: Tensor) -> None:
        if self._across:
            self._across.carry([(target, source)])
        else:
            _copy([(target, source)])

    def give(self, source: Tensor, put: Put) -> None:
        end = self._across.book(source.nbytes) if self._across else None
        put(end)
        if end is not None:
            last_until(end)

    def get(self, taken: Callable[[], object], end: float | None) -> None:
        taken()
        if end is not None:
            last_until(end)

    def later(self, value: Tensor) -> Callable[[], float]:
        return cast("Callable[[], float]", value.item)

    def meter(self) -> CpuMeter:
        return CpuMeter()


def _copy(copies: Sequence[Cast]) -> None:
    for target, source in copies:
        target.copy_(source)
