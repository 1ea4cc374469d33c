"""CUDA devices: a stream for each kind of queue, events as marks, page-locked host memory.

Nothing here waits for the device while a plan is replayed: the host launches ahead, streams wait
for each other by events, and times are read from events that have been reached.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import torch
from torch import Tensor

from executor.devices.cpu import CpuQueue
from executor.devices.device import (
    Device,
    Mark,
    Queue,
    QueueKind,
    aligned,
    apart,
    until,
    use_threads,
)
from executor.devices.gpu import margin, update_cores
from executor.devices.hostmem import PageLocked, Ring
from executor.errors import RunError, UsageError
from executor.numerics import Cast
from plans.schema import Device as Spec

AHEAD, COPIES = 4, 64  # ops of the compute queue, and of any other
_SCALARS = 1 << 16  # losses on their way to the host at once, of some rounds of microbatches
_GOODBYE_S = 1.0  # how long a device may go on after the run
_REBASE_MS = 1000.0  # elapsed times are 32-bit floats: exact to a µs only over short spans


class Clock:
    """Device times on the scale of time.perf_counter(), along a chain of marks, and the events of
    marks that nobody asks any more: the driver makes new ones slowly, and one at a time."""

    def __init__(self, device: int) -> None:
        self._free = deque[torch.cuda.Event]()
        base = CudaMark(device, torch.cuda.current_stream(device), self)
        base.event.synchronize()
        self._base = base, time.perf_counter()  # one value: several threads read and set it

    def event(self) -> torch.cuda.Event:
        """An event that no mark has."""
        with suppress(IndexError):
            return self._free.pop()
        return torch.cuda.Event(enable_timing=True)

    def free(self, event: torch.cuda.Event) -> None:
        """Take back an event; streams that were told to wait for it do so all the same."""
        self._free.append(event)

    def seconds(self, mark: "CudaMark") -> float:
        """When `mark`, which has been reached, was reached."""
        base, begun = self._base
        ms = base.event.elapsed_time(mark.event)
        seconds = begun + ms / 1000
        if ms > _REBASE_MS:
            self._base = mark, seconds
        return seconds


class CudaMark:
    """An event in a stream of a device."""

    __slots__ = ("_clock", "_device", "event")

    def __init__(self, device: int, stream: torch.cuda.Stream, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self.event = clock.event()
        self.event.record(stream)

    def __del__(self) -> None:
        self._clock.free(self.event)

    def ready(self) -> bool:
        # Any thread may ask, and one that has chosen no device would make a context on the first.
        with torch.cuda.device(self._device):
            return bool(self.event.query())

    def seconds(self) -> float:
        return self._clock.seconds(self)


class CudaQueue(Queue):
    """A CUDA stream. Its object is taken once: asking for the current one is asking too late.

    Ops of the compute queue are launched at most AHEAD before they end, others COPIES. A thread
    further ahead would sit in a launch that waits for room in the driver's queue, and the driver
    lets no other thread launch meanwhile: copies would wait for kernels that they have nothing to
    do with.
    """

    def __init__(
        self, device: int, clock: Clock, kind: QueueKind, peer: int | None, threads: int
    ) -> None:
        """`threads`: of what the launching thread computes on the host."""
        self.stream = _stream(device, f"{kind} {peer}")
        self._device, self._clock, self._kind = device, clock, kind
        self._threads, self._ahead = threads, AHEAD if kind == "compute" else COPIES
        self._unreached: deque[CudaMark] = deque()

    def enter(self) -> None:
        torch.cuda.set_device(self._device)
        torch.cuda.set_stream(self.stream)
        use_threads(self._threads)
        if self._kind == "compute":
            _touch_libraries(_where(self._device))

    def mark(self) -> CudaMark:
        return CudaMark(self._device, self.stream, self._clock)

    def wait(self, mark: Mark, check: Callable[[], None]) -> None:
        if isinstance(mark, CudaMark):
            self.stream.wait_event(mark.event)

    def end(self, start: Mark, least_us: int, check: Callable[[], None]) -> CudaMark:
        mark = self.mark()
        self._unreached.append(mark)
        if len(self._unreached) > self._ahead:
            until(self._unreached.popleft(), check)
        return mark


class HostQueue(CpuQueue):
    """Updates in host memory: the calling thread waits for what the device has to bring.

    The thread keeps to cores of its own, and so do the threads that its ops start.
    """

    def enter(self) -> None:
        if cores := update_cores():
            os.sched_setaffinity(0, cores)
        super().enter()

    def wait(self, mark: Mark, check: Callable[[], None]) -> None:
        until(mark, check)


class CudaDevice(Device):
    """One GPU, the `index`-th that the process sees."""

    def __init__(self, spec: Spec, slab_bytes: int, index: int = 0, *, casts: bool = False) -> None:
        """`casts`: parameters are made from masters on their way in, through a ring."""
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise UsageError(
                f"device {spec.name} is CUDA device {index}, but torch {torch.__version__} sees "
                f"{torch.cuda.device_count() if torch.cuda.is_available() else 0} here; see "
                "nvidia-smi and CUDA_VISIBLE_DEVICES, or profile with --device cpu"
            )
        self.spec, self._index = spec, index
        self.where = _where(index)
        torch.cuda.init()
        torch.cuda.set_device(index)
        _grow_blocks()
        _forget()
        self.source = CudaSource(index)
        self.slack_bytes = margin(spec.budget_bytes)
        self._clock = Clock(index)
        self._queues: dict[tuple[QueueKind, int | None], Queue] = {}
        apart(self.queue("compute"), lambda: None)  # its workspaces are not the plan's
        self._libraries = torch.cuda.memory_reserved(self.where)
        self._cap(0)
        self.slab = self._slab(slab_bytes)
        self._locked = PageLocked()
        self._scalars = self._locked.take(8 * _SCALARS).view(torch.float64)
        self._next = 0
        self._ring = Ring(self._locked) if casts else None
        self._opened = self._unused()

    def _slab(self, count: int) -> Tensor:
        try:
            return aligned(count, self.where)
        except torch.OutOfMemoryError:
            free, total = torch.cuda.mem_get_info(self.where)
            raise RunError(
                f"{self.spec.name} has {free} of {total} bytes free, {count} are needed in one "
                "piece; end what else runs there or build with a smaller --device-memory"
            ) from None

    def queue(self, kind: QueueKind, peer: int | None = None) -> Queue:
        """One of each kind for good: libraries keep memory for every stream they ever saw."""
        if (kind, peer) not in self._queues:
            threads = self.spec.threads if kind in ("host", "h2d") else 1
            self._queues[kind, peer] = (
                HostQueue(threads)
                if kind == "host"
                else CudaQueue(self._index, self._clock, kind, peer, threads)
            )
        return self._queues[kind, peer]

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        _copy(target, source)

    copy_out = copy_in

    def send(self, target: Tensor, source: Tensor) -> None:
        """Torch lets such a copy and the other device's current stream wait for each other: with
        one for each sender, copies from several devices have nothing to wait for."""
        with torch.cuda.stream(_stream(_index(target), f"from {self._index}")):
            _copy(target, source)

    def cast_in(self, casts: Sequence[Cast]) -> None:
        assert self._ring is not None, "a plan's devices are opened with what they need"
        queue = self.queue("h2d")
        until(queue.mark())  # the host reads the masters itself: whoever wrote them is done
        self._ring.send(casts, self.copy_in, queue.mark)

    def later(self, value: Tensor) -> Callable[[], float]:
        slot = self._scalars[self._next % _SCALARS]
        self._next += 1
        slot.copy_(value.detach(), non_blocking=True)
        return slot.item

    def meter(self) -> "CudaMeter":
        return CudaMeter(self.where)

    def limit(self, beside: int) -> None:
        self._cap(beside)
        needed = self.spec.budget_bytes - len(self.slab) + beside
        if (left := self._unused()) < needed:
            raise RunError(
                f"{self.spec.name} has {left} bytes free beside its slab, the plan's ops may take "
                f"{needed}; connections between processes and others have taken "
                f"{self._opened - left} since it was opened: end what else runs there or build "
                "with a smaller --device-memory"
            )

    def _unused(self) -> int:
        """Bytes of the device that nobody has, and those that torch keeps for nothing."""
        free = torch.cuda.mem_get_info(self.where)[0] + torch.cuda.memory_reserved(self.where)
        return free - torch.cuda.memory_allocated(self.where)

    def _cap(self, beside: int) -> None:
        total = torch.cuda.get_device_properties(self.where).total_memory
        budget = self.spec.budget_bytes
        allowed = budget + margin(budget) + self._libraries + beside
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), self.where)

    def allocations(self) -> int:
        stats = torch.cuda.memory_stats(self.where)
        return int(stats.get("num_device_alloc", 0)) + int(stats.get("num_alloc_retries", 0))

    def close(self) -> None:
        """After a failure the device may never be done, or not answer any more."""
        with suppress(RuntimeError):
            last = [queue.mark() for queue in self._queues.values()]
            deadline = time.monotonic() + _GOODBYE_S
            while time.monotonic() < deadline and not all(mark.ready() for mark in last):
                time.sleep(0.001)
            self._locked.close()


class CudaMeter:
    """The allocator's own counts, for ops of one stream while nothing else allocates."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = torch.cuda.memory_allocated(device)
        self.taken_bytes = 0
        self.graph_bytes = 0

    @contextmanager
    def op(self, makes: object | None, ends: object | None) -> Iterator[None]:
        self.graph_bytes = torch.cuda.memory_allocated(self._device) - self._base
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        self.taken_bytes = torch.cuda.max_memory_allocated(self._device) - self._base


class CudaSource:
    """The default generator of a CUDA device: a seed and an offset (two 64-bit numbers)."""

    shared = False

    def __init__(self, index: int) -> None:
        self._index = index

    def get(self) -> Tensor:
        return self._generator.get_state()

    def set(self, state: Tensor) -> None:
        self._generator.set_state(state)

    def advanced(self, state: Tensor, draws: int) -> Tensor:
        """The state after so many steps of the offset."""
        words = state.clone().view(torch.int64)
        words[1] += draws
        return words.view(torch.uint8)

    def count(self, before: Tensor, after: Tensor, limit: int = 1 << 62) -> int | None:
        """The offset's distance; None when the seed changed or it went back or too far."""
        (seed, start), (later, end) = (
            state.view(torch.int64).tolist() for state in (before, after)
        )
        return end - start if seed == later and 0 <= end - start <= limit else None

    @property
    def _generator(self) -> torch.Generator:
        torch.cuda.init()
        return torch.cuda.default_generators[self._index]


def _grow_blocks() -> None:
    """Let the allocator grow its blocks, so that transients of many sizes lose little between them.

    Where torch has no such setting, or has made its choice already, the margin has to do."""
    choose = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    with suppress(RuntimeError):
        if choose is not None:
            choose("expandable_segments:True")


def _forget() -> None:
    """Let go of what an earlier run of the process has left: blocks that torch keeps, and what the
    libraries keep for its streams."""
    torch.cuda.empty_cache()
    if clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None):
        clear()


@cache
def _stream(index: int, use: str) -> torch.cuda.Stream:
    """A device's stream for good: torch has 32 and gives them out again, whoever uses them."""
    return torch.cuda.Stream(index)


def _where(index: int) -> torch.device:
    return torch.device("cuda", index)


def _index(flat: Tensor) -> int:
    """The device that has these bytes."""
    return flat.device.index


def _copy(target: Tensor, source: Tensor) -> None:
    """Launch a copy into the current stream of the device that it begins at or ends at."""
    target.copy_(source, non_blocking=True)


def _touch_libraries(device: torch.device) -> None:
    """Let the libraries take their workspaces for this thread and stream, and for autograd's.

    Attention too: cuDNN, which torch prefers for it, is loaded by its first call. Draws no random
    numbers: those of the device belong to the models.
    """
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, weight = torch.ones(2, 64, 64, device=device, dtype=dtype, requires_grad=True).unbind()
        torch.nn.functional.linear(x, weight, weight[0]).sum().backward()
    q = torch.ones(1, 1, 64, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
