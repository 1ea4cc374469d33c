"""A CUDA runtime of threads: what is launched happens later, in the order that streams keep.

Memory and kernels are the host's. Copies wait in the queue of their stream, and a thread does them
after what the stream was told to wait for, with random pauses. Kernels of the compute stream run
when they are launched, so a wait there holds the launching thread. Whoever forgets to wait for an
event gets other bits.
"""

import queue
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import executor.devices.cuda
import executor.devices.machine
from executor.numerics.rng import CpuSource

_CURRENT = threading.local()


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
        return self._reached.is_set()

    def synchronize(self) -> None:
        assert self._reached.wait(20), "an event is never reached"

    def elapsed_time(self, other: "Event") -> float:
        return (other._at - self._at) * 1000


class Stream:
    """A queue of work and the thread that does it."""

    def __init__(
        self, device: object = None, *, eager: bool = False, seed: int = 0, pause_us: int = 1000
    ) -> None:
        self.eager = eager
        self.reading: threading.Thread | None = None  # what comes to the host a little later
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._draw, self._pause_us = random.Random(seed), pause_us
        if not eager:
            threading.Thread(target=self._go, daemon=True).start()

    def put(self, work: Callable[[], None]) -> None:
        if not self.eager:
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


def _current() -> Stream:
    if not hasattr(_CURRENT, "stream"):
        _CURRENT.stream = Stream(eager=True)
    return _CURRENT.stream  # type: ignore[no-any-return]


class Source(CpuSource):
    """The CPU generator as the only device's own."""

    shared = False

    def __init__(self, index: int) -> None:
        super().__init__()


def _copy(_: object, target: Tensor, source: Tensor) -> None:
    _current().put(lambda: target.copy_(source))


def _later(_: object, value: Tensor) -> Callable[[], float]:
    box: list[float] = []
    _current().read(lambda: box.append(float(value)))
    return lambda: box[0]


def install(
    monkeypatch: pytest.MonkeyPatch, seed: int = 0, pause_us: int = 1000, devices: int = 1
) -> SimpleNamespace:
    """Let executor.devices.cuda find devices of this kind; counts what it is asked for."""
    seen = SimpleNamespace(locked={}, streams=0, fraction=0.0)

    def stream(device: object) -> Stream:
        seen.streams += 1
        return Stream(device, seed=seed + seen.streams, pause_us=pause_us)

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
        "set_device": lambda device: None,
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
    for copies in ("copy_in", "copy_out", "send"):
        monkeypatch.setattr(device, copies, _copy)
    monkeypatch.setattr(device, "later", _later)
    queue_of = device.queue

    def eager(self: Any, kind: Any) -> Any:
        made = queue_of(self, kind)
        if kind == "compute":
            made.stream = Stream(eager=True)
        return made

    monkeypatch.setattr(device, "queue", eager)
    return seen
