"""A CUDA runtime of threads: what is launched happens later, in the order that streams keep.

Memory and kernels are the host's. Copies wait in the queue of their stream, and a thread does them
after what the stream was told to wait for, with random pauses. Kernels of the compute stream run
when they are launched, so a wait there holds the launching thread. Whoever forgets to wait for an
event gets other bits: what a copy to the host brings is poison while it is on its way.

Its driver is as strict as CUDA's is slow or silent: events are asked for by threads that have
chosen a device, copies go between page-locked memory and a slab, and of a stream's launches no more
than `room` wait; who launches one more holds the driver, and nobody launches meanwhile.
"""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import executor.devices.cuda
import executor.devices.machine
from executor.numerics.rng import CpuSource

_CURRENT = threading.local()
_DRIVER = threading.Lock()
_POISON = 0xA5


class Event:
    """Reached when the stream comes to where it was recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._reached = threading.Event()
        self._at = 0.0

    def record(self, stream: "Stream | None" = None) -> None:
        (stream or _current()).put(self._reach)

    def _reach(self) -> None:
        self._at = time.perf_counter()
        self._reached.set()

    def query(self) -> bool:
        assert hasattr(_CURRENT, "device"), "this thread would make a context on the first device"
        return self._reached.is_set()

    def synchronize(self) -> None:
        assert self._reached.wait(20), "an event is never reached"

    def elapsed_time(self, other: "Event") -> float:
        return (other._at - self._at) * 1000


class Stream:
    """A queue of work and the thread that does it."""

    def __init__(
        self,
        device: object = None,
        *,
        eager: bool = False,
        seed: int = 0,
        pause_us: int = 1000,
        room: int = 1000,
    ) -> None:
        self.eager, self._room = eager, room
        self.reading: threading.Thread | None = None  # what comes to the host a little later
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._draw, self._pause_us = random.Random(seed), pause_us
        if not eager:
            threading.Thread(target=self._go, daemon=True).start()

    def put(self, work: Callable[[], None]) -> None:
        if not self.eager:
            with _DRIVER:
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
            self.put(event.synchronize)

    def _go(self) -> None:
        while True:
            work = self._work.get()
            time.sleep(self._draw.randint(self._pause_us // 2, self._pause_us) / 1e6)
            work()


@contextmanager
def _chosen(device: object) -> Iterator[None]:
    """A thread's device for a while."""
    before = vars(_CURRENT).get("device")
    _CURRENT.device = device
    try:
        yield
    finally:
        del _CURRENT.device
        if before is not None:
            _CURRENT.device = before


def _current() -> Stream:
    if not hasattr(_CURRENT, "stream"):
        _CURRENT.stream = Stream(eager=True)
    return _CURRENT.stream  # type: ignore[no-any-return]


class Source(CpuSource):
    """The CPU generator as the only device's own."""

    shared = False

    def __init__(self, index: int) -> None:
        super().__init__()


class Copies:
    """Copies of a device as the driver makes them: between its slab and locked memory."""

    def __init__(self, locked: dict[int, int]) -> None:
        self._locked = locked

    def copy_in(self, device: Any, target: Tensor, source: Tensor) -> None:
        self._expect(device, target, source)
        _current().put(lambda: target.copy_(source))

    def copy_out(self, device: Any, target: Tensor, source: Tensor) -> None:
        self._expect(device, source, target)
        _current().put(lambda: target.fill_(_POISON))
        _current().put(lambda: target.copy_(source))

    def send(self, device: Any, target: Tensor, source: Tensor) -> None:
        assert _within(source, device.slab), "sends what is not in its slab"
        _current().put(lambda: target.copy_(source))

    def _expect(self, device: Any, there: Tensor, here: Tensor) -> None:
        assert _within(there, device.slab), "copies from or to what is not in the slab"
        begin, end = here.data_ptr(), here.data_ptr() + here.nbytes
        spans = list(self._locked.items())
        locked = any(at <= begin and end <= at + count for at, count in spans)
        assert locked, "copies from or to memory that is not page-locked"


def _within(part: Tensor, whole: Tensor) -> bool:
    begin, end = whole.data_ptr(), whole.data_ptr() + whole.nbytes
    return begin <= part.data_ptr() and part.data_ptr() + part.nbytes <= end


def _later(_: object, value: Tensor) -> Callable[[], float]:
    box: list[float] = []
    _current().read(lambda: box.append(float(value)))
    return lambda: box[0]


def install(
    monkeypatch: pytest.MonkeyPatch,
    seed: int = 0,
    pause_us: int = 1000,
    devices: int = 1,
    room: int = 1000,
) -> SimpleNamespace:
    """Let executor.devices.cuda find devices of this kind; counts what it is asked for."""
    seen = SimpleNamespace(locked={}, streams=0, fraction=0.0)

    def stream(device: object) -> Stream:
        seen.streams += 1
        return Stream(device, seed=seed + seen.streams, pause_us=pause_us, room=room)

    def register(address: int, count: int, flags: int) -> int:
        seen.locked[address] = count
        return 0

    def unregister(address: int) -> int:
        del seen.locked[address]
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)

    def fraction(share: float, device: object) -> None:
        seen.fraction = share

    fakes: dict[str, Any] = {
        "Event": Event,
        "Stream": stream,
        "set_stream": lambda stream: setattr(_CURRENT, "stream", stream),
        "set_device": lambda device: setattr(_CURRENT, "device", device),
        "device": _chosen,
        "init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: _current(),
        "memory_allocated": lambda device: 0,
        "memory_reserved": lambda device: 0,
        "memory_stats": lambda device: {},
        "max_memory_allocated": lambda device: 0,
        "reset_peak_memory_stats": lambda device: None,
        "mem_get_info": lambda device: (1 << 40, 1 << 40),
        "get_device_properties": lambda device: SimpleNamespace(total_memory=1 << 40, name="fake"),
        "set_per_process_memory_fraction": fraction,
        "cudart": lambda: runtime,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(executor.devices.cuda, "_where", lambda index: torch.device("cpu"))
    for module in (executor.devices.cuda, executor.devices.machine):
        monkeypatch.setattr(module, "CudaSource", Source)
    device = executor.devices.cuda.CudaDevice
    copies = Copies(seen.locked)
    monkeypatch.setattr(device, "copy_in", lambda *own: copies.copy_in(*own))
    monkeypatch.setattr(device, "copy_out", lambda *own: copies.copy_out(*own))
    monkeypatch.setattr(device, "send", lambda *own: copies.send(*own))
    monkeypatch.setattr(device, "later", _later)
    queue_of = device.queue

    def eager(self: Any, kind: Any) -> Any:
        made = queue_of(self, kind)
        if kind == "compute":
            made.stream = Stream(eager=True)
        return made

    monkeypatch.setattr(device, "queue", eager)
    return seen
