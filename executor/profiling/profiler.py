"""The profiler: what every layer of a workload costs on a device, measured once.

A CPU device is emulated: it has the memory and the link rates it is told to have, and computes
on one core. Layers and copies run through the code that a run uses.
"""

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from executor.cutting import left_out
from executor.devices import (
    Device,
    apply,
    cores,
    describe,
    first_gpu,
    free_host_bytes,
    gpu_count,
    host_memory,
    open_devices,
    update_threads,
    usable,
    use_threads,
)
from executor.errors import UsageError
from executor.profiling import links as link_profiler
from executor.profiling import task as task_profiler
from executor.profiling import tokens
from executor.profiling.alike import Kinds
from executor.profiling.layer import Lab
from executor.workload import Task, load
from plans.schema import Device as DeviceSpec
from profiles import console, schema
from profiles.curves import curves_of
from profiles.units import LARGEST, show_bytes, show_us

HOST_SHARE = 0.8  # of the memory that is available now
THREADS = 1  # of each emulated device

PLAIN = schema.Numerics()
_SLOWEST = 100_000  # bytes per second of a link; over a slower one even a small copy lasts long


@dataclass(frozen=True)
class Options:
    """The machine: `devices` of device_bytes each, emulated with links as in `emulation`.

    emulation None: GPUs, with as much memory as is free where device_bytes is None.
    samples: of each time, fewer where one is long. host_bytes None: what the machine has free.
    disk: a folder where idle tasks may wait. lengths: of the sequences that tasks with lengths are
    measured with, by default some up to their longest.
    """

    device_bytes: int | None
    emulation: schema.Emulation | None
    devices: int = 2
    samples: int = 9
    host_bytes: int | None = None
    numerics: schema.Numerics = PLAIN
    disk: Path | None = None
    lengths: tuple[int, ...] = ()


def profile(ref: str, options: Options) -> schema.Profile:
    """Measure all layers of the workload `ref`; WorkloadError for one that cannot be
    cut."""
    tasks, said = load(ref)
    return measure(ref, tasks, said, options)


def measure(
    ref: str, tasks: Sequence[Task], said: Mapping[str, str], options: Options
) -> schema.Profile:
    """The same for a workload that is loaded, whose tasks have these fingerprints."""
    _check(options)
    if options.lengths and all(task.lengths is None for task in tasks):
        raise UsageError(f"--lengths is for tasks with lengths; {ref} has none")
    apply(options.numerics)
    threads = torch.get_num_threads()
    spec = _spec(options)
    specs = [spec] * _opened(options)
    opened, memory = (
        open_devices(specs, [link_profiler.slab_bytes(spec)] * len(specs)),
        host_memory([spec]),
    )
    device, peer = opened[0], opened[1] if len(opened) > 1 else None
    try:
        casts = any(task.precision == "bf16" for task in tasks)
        bar = tqdm(total=0, unit="layer", disable=None, file=sys.stderr, desc="links")
        with left_out(), bar:
            lab = _lab(device, options)
            kinds = Kinds(lab)
            before = _usable(device, options)
            links = link_profiler.links(
                device, memory, lab.samples, lab.slowdown, casts=casts, peer=peer
            )
            bar.set_description("disk")
            disk = link_profiler.disk_rates(options.disk, memory) if options.disk else None
            measured = tuple(
                task_profiler.measure(task, ref, said[task.name], kinds, bar, options.lengths)
                for task in tasks
            )
            usable = min(before, _usable(device, options))  # libraries came with the first ops
        print(kinds, file=sys.stderr)
        provenance = _provenance(device, lab) | {"layers": str(kinds)}
    finally:
        for one in opened:
            one.close()
        memory.close()
        use_threads(threads)
    return schema.Profile(
        machine=_machine(lab, usable, links, disk, options),
        tasks=measured,
        provenance=provenance,
    )


def _spec(options: Options) -> DeviceSpec:
    """The device that measures, for now with room for the copies of the link profiler only."""
    if options.emulation:
        room = 2 * link_profiler.LARGEST
        return DeviceSpec("cpu", "cpu", room, THREADS, options.emulation)
    most = options.device_bytes or LARGEST
    return first_gpu(most, update_threads(len(cores()), options.devices))


def _opened(options: Options) -> int:
    """The one device that measures, and where there are several a second one to send to."""
    if options.emulation:
        return 2 if options.emulation.p2p_bytes_per_s else 1
    return min(2, options.devices, max(1, gpu_count()))


def _lab(device: Device, options: Options) -> Lab:
    """Emulated devices share the cores that they compute with, others share nothing: those that are
    N times slower than the machine keep it busy for one Nth of the time."""
    queue = device.queue("compute")
    queue.enter()
    if not options.emulation:  # models are looked at on the host, and measured on the device
        use_threads(len(cores()))
    link_profiler.warm_up(device)
    slower, load = 1, 1
    if options.emulation:
        slower = options.emulation.compute_slowdown
        load = -(-options.devices // slower)
    return Lab(device, queue, load, options.samples, slower, alone=options.devices == 1)


def slowdown(devices: int) -> int:
    """The factor by which emulated devices are slower than this machine if nobody says: as much as
    it takes for their ops to last as planned.

    Copies, updates on the host and the interpreter need cores too. Where the devices leave them
    half of the cores, devices compute as fast as they can; elsewhere they keep a third busy.
    """
    here = len(cores())
    return 1 if 2 * devices <= here else -(-3 * devices // here)


def table(measured: schema.Profile) -> str:
    """A line per task: its bytes, and the time of a step of one whole batch, never spilling."""
    rows = [("task", "layers", "parameters", "state", "step")]
    for task in measured.tasks:
        param = sum(layer.param_bytes for layer in task.layers)
        state = sum(layer.state_bytes for layer in task.layers)
        step = sum(
            layer.costs[-1].recompute_backward.median_us + layer.update_device.median_us
            for layer in task.layers
        )
        step += sum(layer.costs[-1].forward.median_us for layer in task.layers[:-1])
        of = f" of {task.layers[0].costs[-1].microbatch} tokens" if task.lengths else ""
        sizes = (show_bytes(param), show_bytes(state), show_us(step) + of)
        rows.append((task.name, str(len(task.layers)), *sizes))
    marks = [_told(task, task.lengths) for task in measured.tasks if task.lengths]
    marks += [f"times are {measured.emulated}"] if measured.emulated else []
    if disk := measured.machine.host.disk:
        write, read = (rate.bytes_per_s // 10**6 for rate in (disk.write, disk.read))
        room = show_bytes(disk.usable_bytes)
        marks.append(f"disk: writes {write} MB/s, reads {read} MB/s, {room} for idle tasks")
    return "\n".join([*console.columns(rows), *marks])


def _told(task: schema.Task, lengths: schema.Lengths) -> str:
    """The lengths of a task, where it was measured, and how well its curves fit, in words."""
    sizes = ", ".join(str(cost.microbatch) for cost in task.layers[0].costs)
    off = max(curve.off_ppm for layer in task.layers for curve in curves_of(layer.costs))
    return (
        f"{task.name}: {lengths.samples} samples of {lengths.longest} tokens at most; measured at "
        f"{sizes}; curves are off by {off / 10**4:.1f} % at most"
        + "; one sequence in a microbatch"
        * bool(lengths.why_not)
    )


def _check(options: Options) -> None:
    """UsageError for a machine that cannot be."""
    limits = [("devices", options.devices, 1, 64), ("samples", options.samples, 1, 1000)]
    if link := options.emulation:
        limits += [
            ("latency-us", link.latency_us, 0, 100_000),
            ("slow-compute", link.compute_slowdown, 1, 1000),
            ("h2d", link.h2d_bytes_per_s, _SLOWEST, LARGEST),
            ("d2h", link.d2h_bytes_per_s, _SLOWEST, LARGEST),
            ("p2p", link.p2p_bytes_per_s or LARGEST, _SLOWEST, LARGEST),
        ]
    if options.lengths:
        tokens.check_asked(options.lengths)
    limits += [("lengths", value, 1, LARGEST) for value in options.lengths]
    for name, value, least, most in limits:
        if not least <= value <= most:
            raise UsageError(f"--{name} is {value}; it must be from {least} to {most}")


def _usable(device: Device, options: Options) -> int:
    """Bytes of the device that plans may use."""
    if options.emulation and options.device_bytes:
        return options.device_bytes
    return usable(device.where, options.device_bytes)


def _machine(
    lab: Lab,
    usable_bytes: int,
    links: tuple[schema.Link, ...],
    disk: schema.Disk | None,
    options: Options,
) -> schema.Machine:
    spec = lab.device.spec
    devices = tuple(
        schema.Device(
            name=f"{spec.kind}{number}",
            kind=spec.kind,
            usable_bytes=usable_bytes,
            threads=spec.threads,
            links=links,
            emulation=spec.emulation,
        )
        for number in range(options.devices)
    )
    host = schema.Host(options.host_bytes or _free_bytes(), len(cores()), disk)
    return schema.Machine(devices, host, load=lab.load, numerics=options.numerics)


def _free_bytes() -> int:
    """A share of the memory that is available; of all memory where that is not known."""
    free = free_host_bytes()
    if free is None:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(free * HOST_SHARE)


def _provenance(device: Device, lab: Lab) -> dict[str, str]:
    noted = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": _cpu_model(),
    }
    if device.spec.kind != "cpu":
        return noted | describe(device.where)
    slower = f", {lab.slowdown} times slower than measured" if lab.slowdown > 1 else ""
    return noted | {"timing": f"emulated devices, {lab.load} computing at once{slower}"}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(row.partition(":")[2].strip() for row in lines if row.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
