"""The profiler: what every layer of a workload costs on a device, measured once.

A CPU device is emulated: it has the memory and the link rates it is told to have, and computes
on one core. Layers and copies run through the code that a run uses.
"""

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from tqdm import tqdm

from executor import link_profiler
from executor.bench import Case, on_device
from executor.contention import contention, warm_up
from executor.cuda_machine import describe, update_threads, usable
from executor.device import Device, HostMemory, use_threads
from executor.errors import UsageError, WorkloadError
from executor.layer_check import batch, blamed, check_chain, layer_place
from executor.layer_profiler import Lab, layer_cost, update_costs
from executor.layers import split, ties
from executor.machine import apply, host_memory, open_devices
from executor.precision import needs_norms, norm_bytes
from executor.shard import Shard
from executor.store import free_host_bytes
from executor.workload import Task, build, load
from plans.schema import Device as DeviceSpec
from profiles import console, schema
from profiles.codec import align
from profiles.units import LARGEST, show_bytes, show_us

HOST_SHARE = 0.8  # of the memory that is available now
THREADS = 1  # of each emulated device
SLOWEST = 100_000  # bytes per second of a link; over a slower one even a small copy lasts long

PLAIN = schema.Numerics()

Tick = Callable[[], object]


@dataclass(frozen=True)
class Options:
    """The machine: `devices` of device_bytes each, emulated with links as in `emulation`.

    emulation None: CUDA devices, with as much memory as is free where device_bytes is None.
    samples: of each time, fewer where one is long. host_bytes None: what the machine has free.
    """

    device_bytes: int | None
    emulation: schema.Emulation | None
    devices: int = 2
    samples: int = 9
    host_bytes: int | None = None
    numerics: schema.Numerics = PLAIN


def profile(ref: str, options: Options) -> schema.Profile:
    """Measure all layers of the workload `ref`; WorkloadError for one that cannot be cut."""
    _check(options)
    tasks, digest = load(ref)
    workload = schema.Workload(ref, digest)
    apply(options.numerics)
    threads = torch.get_num_threads()
    (device,), memory = open_devices([_spec(options)], [link_profiler.SLAB_BYTES]), _memory(options)
    try:
        lab = _lab(device, options)
        usable = _usable(device, options)
        links = _links(device, memory, options)
        with tqdm(total=0, unit="layer", disable=None, file=sys.stderr) as bar:
            measured = tuple(_task(task, workload, lab, bar) for task in tasks)
        provenance = _provenance(device, lab)
    finally:
        device.close()
        memory.close()
        use_threads(threads)
    return schema.Profile(
        machine=_machine(device.spec, usable, links, options),
        tasks=measured,
        provenance=provenance,
    )


def _spec(options: Options) -> DeviceSpec:
    """The device that measures, for now with room for the copies of the link profiler only."""
    slab = link_profiler.SLAB_BYTES
    if options.emulation:
        return DeviceSpec("cpu", "cpu", slab, THREADS, options.emulation)
    most = options.device_bytes or LARGEST
    return DeviceSpec("cuda:0", "cuda", most, update_threads(_cores(), options.devices))


def _memory(options: Options) -> HostMemory:
    return host_memory([_spec(options)])


def _lab(device: Device, options: Options) -> Lab:
    """Emulated devices share the cores that they compute with, others share nothing."""
    queue = device.queue("compute")
    queue.enter()
    warm_up(device)
    return Lab(device, queue, options.devices if options.emulation else 1, options.samples)


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
        sizes = (show_bytes(param), show_bytes(state), show_us(step))
        rows.append((task.name, str(len(task.layers)), *sizes))
    return "\n".join(console.columns(rows))


def microbatch_sizes(batch_size: int) -> list[int]:
    """The powers of two that divide the batch, and the batch itself; ascending."""
    powers = (1 << k for k in range(batch_size.bit_length()))
    return sorted({size for size in powers if batch_size % size == 0} | {batch_size})


def _check(options: Options) -> None:
    """UsageError for a machine that cannot be."""
    limits = [("--devices", options.devices, 1, 64), ("--samples", options.samples, 1, 1000)]
    link = options.emulation
    if link:
        limits.append(("--latency-us", link.latency_us, 0, 100_000))
    for flag, value, least, most in limits:
        if value < least:
            raise UsageError(f"{flag} is {value}; {least} is the least")
        if value > most:
            raise UsageError(f"{flag} is {value}; {most} is the most")
    rates = (("--h2d", link.h2d_bytes_per_s), ("--d2h", link.d2h_bytes_per_s)) if link else ()
    for flag, rate in rates:
        if rate < SLOWEST:
            raise UsageError(f"{flag} is {rate} bytes per second; {SLOWEST} is the least")


def _task(task: Task, workload: schema.Workload, lab: Lab, bar: "tqdm[None]") -> schema.Task:
    model, _ = build(task)
    with blamed(f"task {task.name}"):
        layers = split(model)
    inputs, targets = batch(task)
    sizes = microbatch_sizes(len(inputs))
    _check_layers(task, layers, inputs, targets, lab.device)
    bar.total += len(layers) * len(sizes)
    bar.set_description(task.name)
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    optimizer = _optimizer_name(task, list(model.parameters()))
    measured = tuple(_layers(task, layers, inputs, targets, lab, bar.update))
    fit = {cost.microbatch for cost in measured[0].costs}
    return schema.Task(
        name=task.name,
        workload=workload,
        steps=task.steps,
        batch=len(inputs),
        optimizer=optimizer,
        batches=tuple(
            schema.BatchCost(n, align(inputs[:n].nbytes) + align(targets[:n].nbytes))
            for n in sizes
            if n in fit
        ),
        ties=ties(layers),
        precision=task.precision,
        norm_bytes=norm_bytes(len(trainable)) if needs_norms(task.precision, task.clip) else 0,
        layers=measured,
    )


def _check_layers(
    task: Task, layers: list[nn.Module], inputs: Tensor, targets: Tensor, device: Device
) -> None:
    """Run as much of the batch as the device holds through all layers, to refuse bad ones."""
    for size in reversed(microbatch_sizes(len(inputs))):
        try:
            check_chain(task, layers, inputs[:size], targets[:size], device)
        except torch.OutOfMemoryError:
            continue
        return
    raise WorkloadError(f"task {task.name}: not even one sample fits the device")


def _layers(
    task: Task,
    layers: list[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    lab: Lab,
    tick: Tick,
) -> list[schema.Layer]:
    """All layers in turn, each on the boundaries that the one before it gave."""
    xs = {size: inputs[:size] for size in microbatch_sizes(len(inputs))}
    seen: set[int] = set()
    measured = []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        cases = [
            Case(task, layer, x, targets[:size] if last else None, first=index == 0)
            for size, x in xs.items()
        ]
        owned = [p for p in layer.parameters() if id(p) not in seen]
        seen |= {id(p) for p in owned}
        with blamed(layer_place(task, index, layer)):
            shard = on_device(cases[0], lab.device)
            costs = []
            for case in cases:
                try:
                    cost, y = layer_cost(case, lab, shard)
                except torch.OutOfMemoryError:
                    xs = {size: x for size, x in xs.items() if size < len(case.x)}
                    break
                xs[len(case.x)] = y
                costs.append(cost)
                tick()
            if not costs:
                raise WorkloadError("does not fit the device with the smallest microbatch")
            del shard
            measured.append(_layer(cases[len(costs) - 1], owned, tuple(costs), lab))
    fit = set(xs)  # in all layers
    return [replace(m, costs=tuple(c for c in m.costs if c.microbatch in fit)) for m in measured]


def _layer(
    case: Case, owned: list[nn.Parameter], costs: tuple[schema.LayerCost, ...], lab: Lab
) -> schema.Layer:
    """A layer's record; `case` is the whole batch, `owned` the parameters that count in it."""
    update, host, norm = update_costs(case, owned, lab)
    held = Shard([nn.ParameterList(owned)], case.task.optimizer, precision=case.task.precision)
    return schema.Layer(
        name=type(case.layer).__name__,
        param_bytes=held.param_bytes,
        grad_bytes=held.grad_bytes,
        state_bytes=update.state_bytes,
        buffer_bytes=sum(align(b.nbytes) for b in case.layer.buffers()),
        update_peak_bytes=max(update.peak_bytes, host.peak_bytes),
        update_device=update.time,
        update_host=host.time,  # on emulated devices the same code on the same cores
        norm=norm.time if norm and held.grad_bytes else None,
        norm_peak_bytes=norm.peak_bytes if norm else 0,
        costs=costs,
    )


def _optimizer_name(task: Task, parameters: list[nn.Parameter]) -> str:
    if not parameters:
        return "none"
    with blamed(f"task {task.name}: optimizer"):
        return type(task.optimizer(parameters)).__name__


def _usable(device: Device, options: Options) -> int:
    """What plans may use of the device; before anything was measured there."""
    if options.emulation and options.device_bytes:
        return options.device_bytes
    return usable(device.where, options.device_bytes)


def _links(device: Device, memory: HostMemory, options: Options) -> tuple[schema.Link, ...]:
    emulation = options.emulation
    slowest = min(emulation.h2d_bytes_per_s, emulation.d2h_bytes_per_s) if emulation else None
    return link_profiler.links(device, memory, slowest, options.samples)


def _machine(
    spec: DeviceSpec, usable_bytes: int, links: tuple[schema.Link, ...], options: Options
) -> schema.Machine:
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
    host = schema.Host(options.host_bytes or _free_bytes(), _cores())
    load = options.devices if options.emulation else 1
    return schema.Machine(devices, host, load=load, numerics=options.numerics)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    if device.spec.kind == "cuda":
        return noted | describe(device.where) | {"compute beside copies": contention(device)}
    return noted | {"timing": f"emulated devices, {lab.load} computing at once"}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(row.partition(":")[2].strip() for row in lines if row.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
