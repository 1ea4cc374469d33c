"""What a copy costs: latency and rate of a device's links, alone and with both at work.

A copy inside the device shares no link with others: alone and both are one measurement.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

from executor.device import CpuDevice, use_threads
from profiles.schema import Link, Rate

LARGEST = 8 << 20
SLAB_BYTES = 2 * LARGEST  # room for one copy in each direction

Copy = Callable[[int], None]  # copies so many bytes


def links(device: CpuDevice, bytes_per_s: int, samples: int) -> tuple[Link, ...]:
    """h2d, d2h and d2d of `device`, whose slab holds SLAB_BYTES.

    `bytes_per_s` is the expected rate of the slower link: none of its copies lasts long over 20 ms.
    """
    large = min(LARGEST, max(4096, bytes_per_s // 50))
    host_in, host_out = torch.zeros(2, LARGEST, dtype=torch.uint8)
    slab_in, slab_out = device.slab[:LARGEST], device.slab[LARGEST : 2 * LARGEST]

    def h2d(count: int) -> None:
        device.copy_in(slab_in[:count], host_in[:count])

    def d2h(count: int) -> None:
        device.copy_out(host_out[:count], slab_out[:count])

    def d2d(count: int) -> None:
        slab_in[:count].copy_(slab_out[:count])

    inside = _rate(d2d, LARGEST, samples)
    alone = [_rate(copy, large, samples) for copy in (h2d, d2h)]
    with busy(lambda: d2h(large)):
        both = [_rate(h2d, large, samples)]
    with busy(lambda: h2d(large)):
        both.append(_rate(d2h, large, samples))
    return (
        Link("h2d", alone[0], both[0]),
        Link("d2h", alone[1], both[1]),
        Link("d2d", inside, inside),
    )


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
def busy(work: Callable[[], None]) -> Iterator[None]:
    """`work` again and again in a thread of its own, for as long as the context lasts.

    Its ops use as many threads as those of the caller, which is not so by itself.
    """
    done = threading.Event()
    threads = torch.get_num_threads()

    def loop() -> None:
        use_threads(threads)
        while not done.is_set():
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
