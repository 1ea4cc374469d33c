"""Measures latency and rate of a device's links, alone and with both at work.

A copy inside the device shares no link with others: alone and both are one measurement. Casts are
measured without their copies: a prefetch that casts lasts as long as the slower of the two.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import median

import torch
from torch import Tensor

from executor.devices import PIECE, Device, HostMemory, Queue, QueueKind, apart, until, use_threads
from profiles.schema import Link, Rate

LARGEST = 8 << 20
MASTERS = 128 << 20  # bytes that casts are made from in turn: more than caches hold
SLAB_BYTES = 2 * LARGEST  # room for one copy in each direction

Copy = Callable[[int], None]  # copies so many bytes, and returns when they are there


class _Line:
    """One direction of a device, its copies launched in a thread like that of a run."""

    def __init__(self, device: Device, kind: QueueKind, launch: Copy) -> None:
        self.queue = device.queue(kind)
        self._launch = launch

    def copy(self, count: int) -> None:
        self._launch(count)
        until(self.queue.mark())


def links(
    device: Device, memory: HostMemory, bytes_per_s: int | None, samples: int
) -> tuple[Link, ...]:
    """h2d, d2h and d2d of `device`, whose slab holds SLAB_BYTES, with host memory of `memory`.

    `bytes_per_s` is the expected rate of the slower link, where one is known: none of its copies
    lasts long over 20 ms.
    """
    large = _large(bytes_per_s)
    host_in, host_out = memory.take(LARGEST).zero_(), memory.take(LARGEST).zero_()
    slab_in, slab_out = device.slab[:LARGEST], device.slab[LARGEST : 2 * LARGEST]
    h2d = _Line(device, "h2d", lambda n: device.copy_in(slab_in[:n], host_in[:n]))
    d2h = _Line(device, "d2h", lambda n: device.copy_out(host_out[:n], slab_out[:n]))
    d2d = _Line(device, "compute", lambda n: _inside(slab_in[:n], slab_out[:n]))
    inside = apart(d2d.queue, lambda: _rate(d2d.copy, LARGEST, samples))
    rates = {}
    for kind, mine, other in (("h2d", h2d, d2h), ("d2h", d2h, h2d)):
        measure = partial(_rate, mine.copy, large, samples)
        alone = apart(mine.queue, measure)
        with busy(partial(other.copy, large), other.queue):
            rates[kind] = alone, apart(mine.queue, measure)
    return (
        Link("h2d", *rates["h2d"]),
        Link("d2h", *rates["d2h"]),
        Link("d2d", inside, inside),
    )


def cast(device: Device, memory: HostMemory, bytes_per_s: int | None, samples: int) -> Link:
    """The rate of casts of masters for `device`, alone and while parameters leave it."""
    host_in, host_out = memory.take(LARGEST).zero_(), memory.take(LARGEST).zero_()
    slab_out = device.slab[LARGEST : 2 * LARGEST]
    mine = _Line(device, "h2d", _casting(host_in))
    other = _Line(device, "d2h", lambda n: device.copy_out(host_out[:n], slab_out[:n]))
    measure = partial(_rate, mine.copy, LARGEST, samples)
    rates = [apart(mine.queue, measure)]
    with busy(partial(other.copy, _large(bytes_per_s)), other.queue):
        rates.append(apart(mine.queue, measure))
    if device.spec.kind == "cuda":  # nothing is copied before the first piece is cast
        rates = list(map(_begun, rates))
    return Link("cast", *rates)


def _large(bytes_per_s: int | None) -> int:
    """Bytes of a copy that is not too long for the link."""
    return LARGEST if bytes_per_s is None else min(LARGEST, max(4096, bytes_per_s // 50))


def _casting(target: Tensor) -> Copy:
    """Makes so many bytes of parameters in `target`, each time from other masters."""
    masters, params = torch.ones(MASTERS // 4), target.view(torch.bfloat16)
    begins = cycle(range(0, MASTERS // 4, LARGEST // 2))

    def cast(count: int) -> None:
        begin = next(begins)
        params[: count // 2].copy_(masters[begin : begin + count // 2])

    return cast


def _begun(rate: Rate) -> Rate:
    """The rate of pieces of which the first is cast before any copy."""
    first_us = -(-PIECE * 1_000_000 // rate.bytes_per_s)
    return Rate(rate.bytes_per_s, rate.latency_us + first_us)


def _inside(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def _rate(copy: Copy, large: int, samples: int) -> Rate:
    """The line through the median times of a small and a large copy."""
    copy(large)  # touch the pages
    points = [(count, _median_us(copy, count, samples)) for count in (large // 64, large)]
    return fit(points[0], points[1])


def fit(small: tuple[int, float], large: tuple[int, float]) -> Rate:
    """The rate on which both points (bytes, µs) lie; through zero when the small one is slower."""
    us_per_byte = (large[1] - small[1]) / (large[0] - small[0])
    if us_per_byte <= 0:
        us_per_byte = large[1] / large[0]
    latency = max(0.0, small[1] - small[0] * us_per_byte)
    return Rate(bytes_per_s=max(1, round(1e6 / us_per_byte)), latency_us=round(latency))


def _median_us(copy: Copy, count: int, samples: int) -> float:
    times = []
    for _ in range(samples):
        start = time.perf_counter_ns()
        copy(count)
        times.append((time.perf_counter_ns() - start) / 1000)
    return max(0.001, median(times))


@contextmanager
def busy(work: Callable[[], None], queue: Queue | None = None) -> Iterator[None]:
    """`work` again and again in a thread of its own, for as long as the context lasts.

    It launches into `queue`; without one its ops use as many threads as those of the caller,
    which is not so by itself.
    """
    done = threading.Event()
    threads = torch.get_num_threads()

    def loop() -> None:
        if queue is None:
            use_threads(threads)
        else:
            queue.enter()
        while not done.is_set():
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
