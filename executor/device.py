"""One face for the devices that a plan runs on: a slab, copies in and out, threads.

A CPU device is emulated when its plan says so: its copies are paced to the link's rate, so that
spilling costs what it would cost on such a link.
"""

import time

import torch
from torch import Tensor

from executor.errors import RunError
from plans.schema import Buffer, Device
from profiles.codec import ALIGNMENT
from profiles.schema import Emulation

_COARSE_S = 60e-6  # a sleep may last this much longer than asked for


def aligned(count: int) -> Tensor:
    """`count` uninitialised bytes that begin at a multiple of ALIGNMENT; RunError for too many."""
    try:
        raw = torch.empty(count + ALIGNMENT, dtype=torch.uint8)
    except RuntimeError:
        raise RunError(f"the machine cannot give {count} bytes of memory in one piece") from None
    skip = -raw.data_ptr() % ALIGNMENT
    return raw[skip : skip + count]


def use_threads(count: int) -> None:
    """Compute with so many threads in ops that the calling thread starts.

    Asked first and set second: a thread's first question overwrites what was set before it.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


class CpuDevice:
    """A device whose memory is host memory. Buffers of a plan are views of its one slab, which is
    as large as the largest of the programs that run there."""

    def __init__(self, spec: Device, slab_bytes: int) -> None:
        self.spec = spec
        self.slab = aligned(slab_bytes)

    def view(self, buffer: Buffer) -> Tensor:
        """The buffer's bytes, a uint8 tensor."""
        return self.slab[buffer.offset : buffer.offset + buffer.bytes]

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        """Host to device; both uint8 of equal length, `target` in the slab."""
        rate = self.spec.emulation.h2d_bytes_per_s if self.spec.emulation else 0
        paced_copy(target, source, rate, self.spec.emulation)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        """Device to host, or to another device; both uint8 of equal length."""
        rate = self.spec.emulation.d2h_bytes_per_s if self.spec.emulation else 0
        paced_copy(target, source, rate, self.spec.emulation)


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
