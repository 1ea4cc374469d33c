"""One face for the devices that a plan runs on: a slab, queues, marks, random numbers, a meter.

    stream's thread   wait ──▶ launch ──▶ mark ──▶ wait ──▶ launch ──▶ mark        (host order)
    device's queue        ···op···········▶ reached ····op·············▶ reached   (device order)

A thread launches ops into its queue and goes on; a mark says how far the queue has come. On a CPU
device whatever is launched is done when the call returns, so marks are reached as they are made.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from executor.errors import RunError
from executor.numerics import Cast, Source
from plans.schema import Device as Spec
from profiles.codec import ALIGNMENT

T = TypeVar("T")

QueueKind = Literal["compute", "h2d", "d2h", "p2p", "host"]

_POLL_S = 20e-6  # between two looks at a mark that is not reached


Put = Callable[[float | None], None]  # with the time when a paced link has moved what is sent


class Mark(Protocol):
    """A point in the order of a queue."""

    def ready(self) -> bool:
        """True when everything launched before it is done; raises what the device reports."""

    def seconds(self) -> float:
        """When it was reached, as time.perf_counter() counts; only once it is ready."""


class Queue(Protocol):
    """An in-order queue of a device; one thread launches into it."""

    def enter(self) -> None:
        """Let the calling thread launch here from now on."""

    def mark(self) -> Mark:
        """The point after everything launched so far."""

    def wait(self, mark: Mark, check: Callable[[], None]) -> None:
        """Let what is launched later begin after `mark`; `check` may raise to end the wait."""

    def begin(self) -> Mark:
        """The point at which an op begins that is launched now."""
        return self.mark()

    def end(self, start: Mark, least_us: int, check: Callable[[], None]) -> Mark:
        """The point at which the op that began at `start` ends: with emulated compute not before
        `least_us` after it. `check` may raise to end the wait."""
        return self.mark()


class Meter(Protocol):
    """Measures what ops take beside the slab, op by op in the order of the compute stream."""

    taken_bytes: int  # most in use at once in the last op, with the graphs that were alive
    graph_bytes: int  # of them, those of graphs that were alive before it

    def op(self, makes: object | None, ends: object | None) -> AbstractContextManager[object]:
        """Measure one op. `makes` is the key of the graph that it leaves, `ends` that of one it
        uses up."""


class Device(Protocol):
    """A slab with queues, copies in and out, and the device's random numbers."""

    spec: Spec
    slab: Tensor  # uint8
    where: torch.device = torch.device("cpu")
    source: Source
    slack_bytes: int = 0  # that ops may take above their reserve: what allocators round and keep

    def queue(self, kind: QueueKind, peer: int | None = None) -> Queue:
        """The device's queue of this kind; "host" is that of updates in host memory. `peer`: the
        one for what device `peer` of another process sends."""

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        """Launch host to device; both uint8 of equal length, `target` in the slab."""

    def cast_in(self, casts: Sequence[Cast]) -> None:
        """Launch host to device, each master cast to bf16 on the way. The masters are read when
        all that the h2d queue waits for is done, and before this returns."""

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        """Launch device to host; both uint8 of equal length, `source` in the slab."""

    def send(self, target: Tensor, source: Tensor) -> None:
        """Launch device to another device; both uint8 of equal length, `source` in the slab."""

    def give(self, source: Tensor, put: Put) -> None:
        """Launch `source` (uint8, in the slab) to a device of another process: `put` sends it."""
        put(None)

    def get(self, taken: Callable[[], object], end: float | None) -> None:
        """Launch what a device of another process sends: `taken` receives it. `end`: when the
        link has moved it, None for a link that has no pace."""
        taken()

    def later(self, value: Tensor) -> Callable[[], float]:
        """Launch the reading of a scalar; call the result once a later mark is ready."""

    def meter(self) -> Meter:
        """A new meter; bytes in use now count as nothing."""

    def limit(self, beside: int) -> None:
        """Let the process take no more of the device than its budget and so many bytes beside it,
        what the libraries keep for themselves not counted."""
        return

    def allocations(self) -> int:
        """The number of times torch asked the device for memory; after warm-up it should not."""
        return 0

    def close(self) -> None:
        """Give back what outlives the object otherwise."""
        return


def aligned(count: int, where: torch.device | None = None) -> Tensor:
    """`count` uninitialised bytes on a device, or the host, that begin at a multiple of ALIGNMENT;
    RunError when the host, torch.OutOfMemoryError when a device has no such piece."""
    try:
        raw = torch.empty(count + ALIGNMENT, dtype=torch.uint8, device=where)
    except torch.OutOfMemoryError:
        raise
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


def until(mark: Mark, check: Callable[[], None] = lambda: None) -> None:
    """Return when the mark is reached; `check` may raise to end the wait."""
    while not mark.ready():
        check()
        time.sleep(_POLL_S)


def apart(queue: Queue, work: Callable[[], T]) -> T:
    """The result of `work` in a thread of its own that launches into `queue`."""
    made: Future[T] = Future()

    def enter() -> None:
        try:
            queue.enter()
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=enter, daemon=True).start()  # an interrupt does not wait for it
    return made.result()
