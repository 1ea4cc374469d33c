"""A CUDA runtime of threads: what is launched happens later, in the order that streams keep.

Memory and kernels are the host's. Copies wait in the queue of their stream, and a thread does them
after what the stream was told to wait for, with random pauses. Kernels of the compute stream run
when they are launched, so a wait there holds the launching thread. Whoever forgets to wait for an
event gets other bits: what a copy brings is poison while it is on its way.

Its driver is as strict as CUDA's is slow or silent. A thread has a current device, and of each
device a current stream. Events are asked for by threads that have chosen a device. Copies go
between page-locked memory and a slab in the current stream of that slab's device, which somebody
has chosen; those from slab to slab also hold up the current stream of the other device. Of a
stream's launches no more than `room` wait; who launches one more holds the driver, and nobody
launches meanwhile.
"""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

import executor.devices.cuda
import executor.devices.machine
from executor.numerics.rng import CpuSource
from plans.schema import Plan

_CURRENT = threading.local()
_POISON = 0xA5


class Event:
    """Reached when the stream comes to where it was recorded last."""

    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        Event.made += 1
        self.reached = threading.Event()
        self._at = 0.0

    def record(self, stream: "Stream") -> None:
        self.reached = threading.Event()
        stream.put(partial(self._reach, self.reached))

    def _reach(self, reached: threading.Event) -> None:
        self._at = time.perf_counter()
        reached.set()

    def query(self) -> bool:
        assert hasattr(_CURRENT, "device"), "this thread would make a context on the first device"
        return self.reached.is_set()

    def synchronize(self) -> None:
        _wait(self.reached)

    def elapsed_time(self, other: "Event") -> float:
        return (other._at - self._at) * 1000


def _wait(reached: threading.Event) -> None:
    assert reached.wait(20), "an event is never reached"


class Stream:
    """A queue of work and the thread that does it."""

    def __init__(
        self,
        device: int = 0,
        drivers: Sequence[threading.Lock] = (),
        *,
        eager: bool = False,
        seed: int = 0,
        pause_us: int = 1000,
        room: int = 1000,
    ) -> None:
        self.device, self.eager, self._room = device, eager, room
        self._drivers = drivers
        self.reading: threading.Thread | None = None  # what comes to the host a little later
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._draw, self._pause_us = random.Random(seed), pause_us
        if not eager:
            threading.Thread(target=self._go, daemon=True).start()

    def put(self, work: Callable[[], None]) -> None:
        if not self.eager:
            with self._drivers[self.device]:
                while self._work.qsize() >= self._room:
                    time.sleep(1e-5)
                self._work.put(work)
        elif self.reading is not None and self.reading.is_alive():
            before = self.reading
            self.reading = threading.Thread(target=lambda: (before.join(), work()), daemon=True)
            self.reading.start()
        else:
            work()

    def read(self, work: Callable[[], None]) -> None:
        """Do it in a while, and reach no event before."""
        self.reading = threading.Thread(target=lambda: (time.sleep(0.002), work()), daemon=True)
        self.reading.start()

    def wait_event(self, event: Event) -> None:
        if self.eager:  # the next kernel runs when it is launched
            event.synchronize()
        else:
            self.put(partial(_wait, event.reached))

    def _go(self) -> None:
        while True:
            work = self._work.get()
            time.sleep(self._draw.randint(self._pause_us // 2, self._pause_us) / 1e6)
            work()


@contextmanager
def _chosen(device: int) -> Iterator[None]:
    """A thread's device for a while."""
    before = vars(_CURRENT).get("device")
    _CURRENT.device = device
    try:
        yield
    finally:
        del _CURRENT.device
        if before is not None:
            _CURRENT.device = before


def _streams() -> dict[int, Stream]:
    """The thread's current stream of each device for which it has chosen one."""
    return vars(_CURRENT).setdefault("streams", {})  # type: ignore[no-any-return]


def _choose(stream: Stream) -> None:
    _CURRENT.device = stream.device
    _streams()[stream.device] = stream


@contextmanager
def _within(stream: Stream) -> Iterator[None]:
    """A thread's device and stream for a while."""
    with _chosen(stream.device):
        before = _streams().get(stream.device)
        _streams()[stream.device] = stream
        try:
            yield
        finally:
            del _streams()[stream.device]
            if before is not None:
                _streams()[stream.device] = before


class Source(CpuSource):
    """The CPU generator as the only device's own."""

    shared = False

    def __init__(self, index: int) -> None:
        super().__init__()


class Memory:
    """The slabs of devices, page-locked memory, and the default streams of devices."""

    def __init__(self, devices: int) -> None:
        self.locked: dict[int, int] = {}
        self.slabs: dict[int, Tensor] = {}
        self.drivers = [threading.Lock()] * devices  # one process
        self.defaults = [Stream(number, self.drivers) for number in range(devices)]

    def current(self, device: int) -> Stream:
        """The device's current stream in this thread."""
        return _streams().get(device) or self.defaults[device]

    def index(self, flat: Tensor) -> int | None:
        """The device that has these bytes in its slab; None for the host's."""
        spans = ((n, slab.data_ptr(), slab.nbytes) for n, slab in self.slabs.items())
        return next((number for number, *span in spans if _holds(*span, flat)), None)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """A copy as the driver makes it."""
        ends = self.index(source), self.index(target)
        for flat in (flat for flat, end in zip((source, target), ends, strict=True) if end is None):
            spans = list(self.locked.items())
            assert any(_holds(*span, flat) for span in spans), "copies what is not page-locked"
        begin, end = (own for own in (ends[::-1] if ends[0] is None else ends))
        assert begin is not None, "copies from host to host"
        stream, other = _streams().get(begin), None if end is None else self.current(end)
        assert stream, "nobody has chosen a stream for this"
        if other:
            _after(other, stream)
        stream.put(partial(_copy, target, source))
        if other:
            _after(stream, other)


def _after(before: Stream, later: Stream) -> None:
    """Let what is launched in a stream wait for what is launched in another one."""
    event = Event()
    event.record(before)
    later.wait_event(event)


def _copy(target: Tensor, source: Tensor) -> None:
    target.fill_(_POISON)
    time.sleep(1e-5)
    target.copy_(source)


def _holds(begin: int, count: int, part: Tensor) -> bool:
    at = part.data_ptr()
    return begin <= at and at + part.nbytes <= begin + count


def on_cuda(plan: Plan) -> Plan:
    """The same plan for CUDA devices."""
    devices = tuple(structs.replace(d, kind="cuda", emulation=None) for d in plan.devices)
    return structs.replace(plan, devices=devices)


def install(
    monkeypatch: pytest.MonkeyPatch,
    seed: int = 0,
    pause_us: int = 1000,
    devices: int = 1,
    room: int = 1000,
) -> SimpleNamespace:
    """Let executor.devices.cuda find devices of this kind; counts what it is asked for."""
    memory, cuda = Memory(devices), executor.devices.cuda
    seen = SimpleNamespace(locked=memory.locked, memory=memory, streams=0, fraction=0.0)
    seen.kept, seen.free = 0, 1 << 40  # blocks of earlier runs that torch holds; free bytes
    cuda._stream.cache_clear()

    def stream(device: int) -> Stream:
        seen.streams += 1
        return Stream(
            device, memory.drivers, seed=seed + seen.streams, pause_us=pause_us, room=room
        )

    def register(address: int, count: int, flags: int) -> int:
        seen.locked[address] = count
        return 0

    def unregister(address: int) -> int:
        del seen.locked[address]
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)

    def fraction(share: float, device: object) -> None:
        seen.fraction = share

    def later(_: object, value: Tensor) -> Callable[[], float]:
        box: list[float] = []
        memory.current(_CURRENT.device).read(lambda: box.append(float(value)))
        return lambda: box[0]

    fakes: dict[str, Any] = {
        "Event": Event,
        "Stream": stream,
        "set_stream": _choose,
        "stream": _within,
        "set_device": lambda device: setattr(_CURRENT, "device", device),
        "device": _chosen,
        "init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "synchronize": lambda device=None: None,
        "current_stream": memory.current,
        "empty_cache": lambda: setattr(seen, "kept", 0),
        "memory_allocated": lambda device: 0,
        "memory_reserved": lambda device: seen.kept,
        "memory_stats": lambda device: {},
        "max_memory_allocated": lambda device: 0,
        "reset_peak_memory_stats": lambda device: None,
        "mem_get_info": lambda device: (seen.free, 1 << 40),
        "get_device_properties": lambda device: SimpleNamespace(total_memory=1 << 40, name="fake"),
        "set_per_process_memory_fraction": fraction,
        "cudart": lambda: runtime,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(cuda, "_where", lambda index: torch.device("cpu"))
    monkeypatch.setattr(cuda, "_index", memory.index)
    monkeypatch.setattr(cuda, "_copy", memory.copy)
    for module in (cuda, executor.devices.machine):
        monkeypatch.setattr(module, "CudaSource", Source)
    device = cuda.CudaDevice
    monkeypatch.setattr(device, "later", later)
    slab_of, queue_of = device._slab, device.queue

    def slab(self: Any, count: int) -> Tensor:
        memory.slabs[self._index] = slab_of(self, count)
        return memory.slabs[self._index]

    def eager(self: Any, kind: Any, peer: int | None = None) -> Any:
        made = queue_of(self, kind, peer)
        if kind == "compute":
            made.stream = Stream(self._index, eager=True)
        return made

    monkeypatch.setattr(device, "_slab", slab)
    monkeypatch.setattr(device, "queue", eager)
    return seen
