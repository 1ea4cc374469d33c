"""Measures latency and rate of a device's links, alone and with both at work, and of a disk.

A copy inside the device shares no link with others: alone and both are one measurement. Casts are
measured without their copies: a prefetch that casts lasts as long as the slower of the two.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from executor.devices import (
    PIECE,
    Device,
    HostMemory,
    Mark,
    Queue,
    QueueKind,
    apart,
    host_memory,
    until,
    use_threads,
)
from executor.outputs import free_bytes, make_folder
from executor.records import checkpoint
from plans.schema import Device as Spec
from profiles.schema import Disk, Link, Rate

LARGEST, GPU_LARGEST = 8 << 20, 64 << 20  # bytes of a copy over an emulated link, and a GPU's
MASTERS = 128 << 20  # bytes that casts are made from in turn: more than caches hold
FILE_BYTES = 32 << 20
FILE_SAMPLES = 3
DISK_SHARE = 0.9  # of what is free now
_COPIES = 500  # that an emulated link makes in a second while others compute
_WARM_S = 3.0  # clocks of a device that had nothing to do are low
_SIDE = 4096  # of the matrices that are multiplied meanwhile

_FLIGHT = 8  # copies that are launched before the first of them has ended, as in a run

Copy = Callable[[int], object]  # copies so many bytes, or launches that


class _Line:
    """One direction of a device, its copies launched in a thread like that of a run."""

    def __init__(self, device: Device, kind: QueueKind, launch: Copy) -> None:
        self.queue = device.queue(kind)
        self.flight = 1 if device.spec.kind == "cpu" else _FLIGHT
        self._launch = launch

    def copies(self, count: int) -> float:
        """Seconds that a copy of so many bytes lasts behind others, as the queue counts them."""
        begin = self.queue.mark()
        for _ in range(self.flight):
            self._launch(count)
        end = self.queue.mark()
        until(end)
        return (end.seconds() - begin.seconds()) / self.flight

    def rate(self, large: int, samples: int) -> Rate:
        """The line through the times of a small and a large copy."""
        return apart(self.queue, lambda: measured(self.copies, (large // 64, large), samples))

    @contextmanager
    def busy(self, count: int) -> Iterator[None]:
        """Copies of so many bytes again and again meanwhile, one after the other without a rest."""
        ahead: deque[Mark] = deque()

        def work() -> None:
            self._launch(count)
            ahead.append(self.queue.mark())
            if len(ahead) > self.flight:
                until(ahead.popleft())

        with busy(work, self.queue):
            yield


def both_ways(device: Device, host: Sequence[Tensor]) -> tuple[_Line, _Line]:
    """h2d and d2h between two flats of host memory and the beginning of the slab."""
    size = len(host[0])
    into, out = device.slab[:size], device.slab[size : 2 * size]
    return (
        _Line(device, "h2d", lambda n: device.copy_in(into[:n], host[0][:n])),
        _Line(device, "d2h", lambda n: device.copy_out(host[1][:n], out[:n])),
    )


def links(
    device: Device,
    memory: HostMemory,
    samples: int,
    slowdown: int,
    *,
    casts: bool,
    peer: Device | None = None,
) -> tuple[Link, ...]:
    """h2d, d2h and d2d of `device`, with a slab of `slab_bytes`, which computes so many times
    slower than here, with host memory of `memory`; p2p to `peer`, if there
    is one; with `casts`, that of masters too, alone and while parameters leave the device."""
    large, most = count_of(device, 50), _largest(device.spec)  # no copy lasts long over 20 ms
    host = [memory.take(most).zero_() for _ in range(2)]
    h2d, d2h = both_ways(device, host)
    into, out = device.slab[:most], device.slab[most : 2 * most]
    d2d = _Line(device, "compute", lambda n: into[:n].copy_(out[:n]))
    rate = d2d.rate(most, samples)  # its own work, as slow as all that it computes
    inside = Rate(max(1, rate.bytes_per_s // slowdown), rate.latency_us * slowdown)
    rates = [_rates(*pair, large, large, samples) for pair in ((h2d, [d2h]), (d2h, [h2d]))]
    found = [Link("h2d", *rates[0]), Link("d2h", *rates[1]), Link("d2d", inside, inside)]
    if peer:
        there = peer.slab[:most]
        p2p = _Line(device, "p2p", lambda n: device.send(there[:n], out[:n]))
        found.append(Link("p2p", *_rates(p2p, [h2d, d2h], large, large, samples)))
    if not casts:
        return tuple(found)
    cast = _rates(_Line(device, "h2d", _casting(host[0])), [d2h], LARGEST, large, samples)
    if device.spec.kind != "cpu":  # nothing is copied before the first piece is cast
        cast = [_begun(rate) for rate in cast]
    return (*found, Link("cast", *cast))


def _rates(
    line: _Line, others: Sequence[_Line], count: int, beside: int, samples: int
) -> list[Rate]:
    """The rate of a line alone, and while others copy `beside` bytes again and again."""
    alone = line.rate(count, samples)
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(other.busy(beside))
        return [alone, line.rate(count, samples)]


def slab_bytes(spec: Spec) -> int:
    """Bytes of a device's slab: room for one copy in each direction."""
    return 2 * _largest(spec)


def _largest(spec: Spec) -> int:
    return LARGEST if spec.kind == "cpu" else GPU_LARGEST


def count_of(device: Device, per_second: int) -> int:
    """Bytes of a copy of which the slower link makes so many in a second, within bounds."""
    if (known := device.spec.emulation) is None:
        return _largest(device.spec)
    rates = known.h2d_bytes_per_s, known.d2h_bytes_per_s, known.p2p_bytes_per_s
    slower = min(rate for rate in rates if rate)
    return min(LARGEST, max(4096, slower // per_second))


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


def disk_rates(folder: Path, memory: HostMemory) -> Disk:
    """Rates and room of checkpoints in `folder`, as which idle tasks wait; RunError when it has no
    room for the measurement.

    Nothing is left there."""
    flat = memory.take(FILE_BYTES)
    noise = torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=torch.Generator())
    flat.copy_(noise)  # zeros would be left out by some file systems
    sizes = FILE_BYTES // 32, FILE_BYTES
    make_folder(folder)
    with TemporaryDirectory(dir=folder) as made:
        files = {size: Path(made) / f"{size}.pt" for size in sizes}

        def write(count: int) -> float:
            begun = time.perf_counter()
            content = {"model": {"x": flat[:count]}, "optimizer": {}, "step": 0}
            part = checkpoint.write(files[count], content | {"rng": None, "loss_scale": None})
            checkpoint.put(part, files[count])
            return time.perf_counter() - begun

        def read(count: int) -> float:
            begun = time.perf_counter()
            flat[:count].copy_(checkpoint.read(files[count], 0).model["x"])
            return time.perf_counter() - begun

        rates = [measured(copy, sizes, FILE_SAMPLES) for copy in (write, read)]
        room = max(1, int(free_bytes(folder) * DISK_SHARE))
        return Disk(room, read=rates[1], write=rates[0])


def measured(copy: Callable[[int], float], counts: tuple[int, int], samples: int) -> Rate:
    """The line through the median times of a small and a large copy, which `copy` makes and tells
    in seconds, after one of each."""
    points = []
    for count in counts:
        copy(count)  # touch the pages
        points.append((count, max(0.001, 1e6 * median(copy(count) for _ in range(samples)))))
    return fit(*points)


def fit(small: tuple[int, float], large: tuple[int, float]) -> Rate:
    """The rate on which both points (bytes, µs) lie; through zero when the small one is slower."""
    us_per_byte = (large[1] - small[1]) / (large[0] - small[0])
    if us_per_byte <= 0:
        us_per_byte = large[1] / large[0]
    latency = max(0.0, small[1] - small[0] * us_per_byte)
    return Rate(bytes_per_s=max(1, round(1e6 / us_per_byte)), latency_us=round(latency))


def warm_up(device: Device) -> None:
    """Let a device's clocks rise before anything is timed; emulated ones have none of their own.

    In the thread that has entered the device's compute queue."""
    if device.spec.kind == "cpu":
        return
    matrix = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device=device.where).normal_()
    queue, end = device.queue("compute"), time.monotonic() + _WARM_S
    while time.monotonic() < end:
        torch.mm(matrix, matrix)
        until(queue.mark())


@contextmanager
def copying(device: Device) -> Iterator[None]:
    """Both directions of a device's links are busy; its slab holds one copy for each."""
    count, memory = count_of(device, _COPIES), host_memory([device.spec])
    with ExitStack() as stack:
        stack.callback(memory.close)
        host = [memory.take(count).zero_() for _ in range(2)]
        for line in both_ways(device, host):
            stack.enter_context(line.busy(count))
        yield


@contextmanager
def busy(work: Callable[[], object], queue: Queue | None = None) -> Iterator[None]:
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
