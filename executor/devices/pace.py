"""Waiting for a moment: how emulated devices last as long as those that they stand for.

Copies last as long as their link needs (`cpu.Link`). Where a device computes slower than its host,
an op really runs, and then its stream waits until the op has lasted as long as the plan says: so
that many devices on few cores are as fast as planned, as long as the cores keep up with them all.

    what it waits for ends ──▶│ thread wakes │ op really runs │ thread waits │──▶ the op ends
                              └────────────── as long as planned ────────────┘

An op's time begins where it would on a device that it was launched into beforehand
(`cpu.CpuQueue`), so that what a thread takes to come to it does not add up.
"""

import time
from collections.abc import Callable

from plans.ops import Lane
from plans.schema import Device, Op

_COARSE_S = 60e-6  # a sleep may last this much longer than asked for
_SLICE_S = 0.1  # between two looks at whether the wait is to end early


def least_us(device: Device, op: Op) -> int:
    """The least time of `op`, once it has begun, on a device of this kind.

    0 for copies, which their links pace, and wherever ops take the time that they take.
    """
    if device.emulation is None or device.emulation.compute_slowdown == 1:
        return 0
    return op.us if op.queue.lane in (Lane.COMPUTE, Lane.HOST) else 0


def wait_until(deadline: float, check: Callable[[], None] = lambda: None) -> None:
    """Return at `deadline`, a time.perf_counter() value, as precisely as a busy wait would.

    `check` is called now and then, and may raise to end the wait."""
    while (left := deadline - time.perf_counter()) > 0:
        check()
        time.sleep(min(left - _COARSE_S, _SLICE_S) if left > _COARSE_S else 0)
