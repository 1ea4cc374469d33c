"""What copies and computing do to each other on a device, and the clocks they are measured at."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median

import torch

from executor.devices import Device, Queue, QueueKind, until
from executor.profiling.links import LARGEST, busy

_WARM_S = 1.0  # clocks of a device that had nothing to do are low
_SIDE = 4096  # of the matrices that are multiplied
_PRODUCTS = 9
_COPIES = 500  # that an emulated link makes in a second, so that none is waited for long


def warm_up(device: Device) -> None:
    """Let a device's clocks rise before anything is timed; emulated ones have none of their own.

    In the thread that has entered the device's compute queue."""
    if device.spec.kind == "cpu":
        return
    product, queue = _product(device), device.queue("compute")
    end = time.monotonic() + _WARM_S
    while time.monotonic() < end:
        product()
        until(queue.mark())


@contextmanager
def copying(device: Device) -> Iterator[None]:
    """Both directions of a device's links are busy; its slab holds twice LARGEST bytes, or twice
    those of a copy."""
    emulation = device.spec.emulation
    count = LARGEST
    if emulation:
        slowest = min(emulation.h2d_bytes_per_s, emulation.d2h_bytes_per_s)
        count = min(LARGEST, max(4096, slowest // _COPIES))
    host = torch.zeros(2, count, dtype=torch.uint8, pin_memory=device.where.type == "cuda")
    into, out = device.slab[:count], device.slab[count : 2 * count]
    lines: tuple[tuple[QueueKind, Callable[[], None]], ...] = (
        ("h2d", partial(device.copy_in, into, host[0])),
        ("d2h", partial(device.copy_out, host[1], out)),
    )
    with ExitStack() as stack:
        for kind, copy in lines:
            queue = device.queue(kind)
            stack.enter_context(busy(partial(_wholly, copy, queue), queue))
        yield


def _wholly(launch: Callable[[], None], queue: Queue) -> None:
    launch()
    until(queue.mark())


def contention(device: Device) -> str:
    """How much longer computing lasts while both directions copy, as a factor in words."""
    product, queue = _product(device), device.queue("compute")
    alone = _median_s(product, queue)
    with copying(device):
        beside = _median_s(product, queue)
    return f"{beside / max(1e-9, alone):.3f} times as long"


def _product(device: Device) -> Callable[[], object]:
    left, right = torch.ones(2, _SIDE, _SIDE, dtype=torch.bfloat16, device=device.where).normal_()
    return partial(torch.mm, left, right)


def _median_s(work: Callable[[], object], queue: Queue) -> float:
    times = []
    for _ in range(_PRODUCTS):
        start = queue.mark()
        work()
        end = queue.mark()
        until(end)
        times.append(end.seconds() - start.seconds())
    return median(times)
