"""What a GPU, its driver and torch do, one question at a time: the facts that replay rests on.

    python -m tests.gpu.primitives

prints one JSON line for each question. The exit code is 1 where an answer contradicts the
executor, and 0 otherwise; figures that only inform (rates, times) cannot fail.
"""

import json
import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F

from executor.devices.cuda import CudaDevice, CudaSource
from executor.devices.device import apart
from plans.schema import Device as Spec

Facts = dict[str, Any]

GIB = 1 << 30
PINNED = 4 * GIB
MADV_HUGEPAGE = 14


class Wrong(Exception):
    """The device does not do what the executor relies on."""


def versions() -> Facts:
    """What is installed, and what the driver keeps of the card for itself."""
    free, total = torch.cuda.mem_get_info()
    cudnn = torch.backends.cudnn.version()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "gpu": torch.cuda.get_device_name(),
        "total_bytes": total,
        "taken_bytes": total - free,
        "cores": torch.get_num_threads(),
    }


def pinning() -> Facts:
    """GiB/s of page-locking fresh host memory: page by page, in huge pages, filled by threads."""
    found: Facts = {}
    for name, huge, threads in (("plain", 0, 0), ("huge", 1, 0), ("huge, 8 threads", 1, 8)):
        area = mmap.mmap(-1, PINNED, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge:
            area.madvise(MADV_HUGEPAGE)
        flat = torch.frombuffer(area, dtype=torch.uint8)
        begun = time.perf_counter()
        if threads:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda part: part.zero_(), flat.chunk(threads)))
        filled = time.perf_counter()
        code = int(torch.cuda.cudart().cudaHostRegister(flat.data_ptr(), PINNED, 1))
        ended = time.perf_counter()
        if code:
            raise Wrong(f"{PINNED} bytes cannot be page-locked: CUDA error {code}")
        found[name] = {"fill_s": round(filled - begun, 2), "lock_s": round(ended - filled, 2)}
        begun = time.perf_counter()
        torch.cuda.cudart().cudaHostUnregister(flat.data_ptr())
        found[name]["unlock_s"] = round(time.perf_counter() - begun, 2)
        del flat
    return found


def links() -> Facts:
    """GB/s of copies of 256 MiB between page-locked and device memory, alone and both at once."""
    count = 256 << 20
    host = [torch.empty(count, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(count, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    ways = {"h2d": (device[0], host[0]), "d2h": (host[1], device[1])}

    def rate(names: tuple[str, ...]) -> list[float]:
        spans = []
        for name, stream in zip(names, streams, strict=False):
            with torch.cuda.stream(stream):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                for _ in range(8):
                    ways[name][0].copy_(ways[name][1], non_blocking=True)
                end.record()
            spans.append((begin, end))
        torch.cuda.synchronize()
        return [round(8 * count / begin.elapsed_time(end) / 1e6, 1) for begin, end in spans]

    rate(("h2d",))
    both = rate(("h2d", "d2h"))
    return {"h2d": rate(("h2d",))[0], "d2h": rate(("d2h",))[0], "both": both}


def full_queue() -> Facts:
    """How long other threads wait to launch while one thread's launches wait for room.

    One thread launches 3,000 kernels of about 1 ms; beside it another one launches copies and
    records events in a stream of its own.
    """
    cycles = int(1e-3 * torch.cuda.clock_rate() * 1e6) if hasattr(torch.cuda, "clock_rate") else 0
    cycles = min(max(cycles, 1_000_000), 2_000_000)
    host = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    launched: list[float] = []
    ended = threading.Event()

    def fill() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            begun = time.perf_counter()
            for _ in range(3000):
                torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            launched.append(time.perf_counter() - begun)
        ended.set()

    waits, queries = [], []
    thread = threading.Thread(target=fill)
    with torch.cuda.stream(torch.cuda.Stream()):
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        thread.start()
        time.sleep(0.3)
        while not ended.is_set() and len(waits) < 2000:
            begun = time.perf_counter()
            device.copy_(host, non_blocking=True)
            mark = torch.cuda.Event()
            mark.record()
            waits.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            mark.query()
            queries.append(time.perf_counter() - begun)
            time.sleep(0.001)
    thread.join()
    torch.cuda.synchronize()
    return {
        "filling_s": round(launched[0], 2),
        "copies": len(waits),
        "launch_us": _spread(waits),
        "query_us": _spread(queries),
    }


def _spread(seconds: list[float]) -> list[int]:
    """Median, 99th percentile and largest, in µs."""
    ordered = sorted(seconds)
    picked = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1.0))
    return [round(second * 1e6) for second in picked]


def draws() -> Facts:
    """The generator's offset grows by the same number for the same op, and `advanced` adds it."""
    source = CudaSource(0)
    x = torch.ones(1000, 1000, device="cuda")
    counts = []
    for _ in range(3):
        before = source.get()
        F.dropout(x, 0.5)
        counts.append(source.count(before, source.get()))
    if len(set(counts)) != 1 or not counts[0]:
        raise Wrong(f"dropout moves the generator's offset by {counts}")
    state = source.get()
    F.dropout(x, 0.5)
    ahead = F.dropout(x, 0.5)
    source.set(source.advanced(state, counts[0]))
    if not torch.equal(F.dropout(x, 0.5), ahead):
        raise Wrong("a generator that was moved on draws other numbers")
    return {"dropout": counts[0]}


def attention() -> Facts:
    """Driver memory that the first attention takes; whether its backward gives the same bits."""
    before = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    found: Facts = {}
    for name, setting in (("free", False), ("deterministic", True)):
        torch.set_deterministic_debug_mode(2 * setting)
        q, k, v = torch.randn(3, 4, 16, 2048, 128, device="cuda", dtype=torch.bfloat16).unbind()
        grads = []
        for _ in range(3):
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            y = F.scaled_dot_product_attention(*leaves, is_causal=True)
            grads.append(torch.autograd.grad(y.sum() + (y * y).sum(), leaves))
        alike = all(torch.equal(a, b) for g in grads for a, b in zip(g, grads[0], strict=True))
        found[f"same bits, {name}"] = alike
    torch.set_deterministic_debug_mode(0)
    taken = before - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    if not found["same bits, deterministic"]:
        raise Wrong("attention's backward gives other bits though determinism was asked for")
    return found | {"driver_bytes": taken}


def device_face() -> Facts:
    """A device opened as a run opens it: the meter, the cap, casts through the ring, marks."""
    device = CudaDevice(Spec("cuda:0", "cuda", 2 * GIB, 4), GIB, casts=True)
    try:
        device.limit(0)
        return _metered(device) | _capped(device) | _cast(device) | _marked(device)
    finally:
        device.close()


def _metered(device: CudaDevice) -> Facts:
    meter = device.meter()
    with meter.op(None, None):
        x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        y = x + 1
        del x, y
    if meter.taken_bytes != 200 << 20:
        raise Wrong(f"the meter sees {meter.taken_bytes} of {200 << 20} bytes")
    return {"metered_bytes": meter.taken_bytes}


def _capped(device: CudaDevice) -> Facts:
    try:
        torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return {"capped": True}
    raise Wrong("4 GiB were given to a process that may take 2")


def _cast(device: CudaDevice) -> Facts:
    master = torch.randn(5_000_000)
    target = device.slab[: 2 * len(master)].view(torch.bfloat16)

    def send() -> None:
        device.cast_in([(target, master)])

    apart(device.queue("h2d"), send)
    torch.cuda.synchronize()
    if not torch.equal(target.cpu(), master.bfloat16()):
        raise Wrong("casts through the ring give other bits")
    return {"cast": True}


def _marked(device: CudaDevice) -> Facts:
    queue = device.queue("compute")
    host = time.perf_counter()
    mark = queue.mark()
    torch.cuda.synchronize()
    off = abs(mark.seconds() - host)
    if off > 0.01:
        raise Wrong(f"a mark's time is {off:.3f} s from the host's")
    return {"clock_us": round(off * 1e6)}


QUESTIONS: tuple[Callable[[], Facts], ...] = (
    versions,
    links,
    pinning,
    draws,
    attention,
    device_face,
    full_queue,
)


def main() -> int:
    """Ask everything; one line each."""
    if not torch.cuda.is_available():
        print("skipped: no CUDA device here")
        return 0
    failed = 0
    for question in QUESTIONS:
        begun = time.perf_counter()
        row: Facts = {"question": question.__name__}
        try:
            row |= question()
        except Exception as error:  # one wrong answer must not hide the others
            row["wrong"] = f"{type(error).__name__}: {error}"
            failed += 1
        row["seconds"] = round(time.perf_counter() - begun, 2)
        print(json.dumps(row), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
