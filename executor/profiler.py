"""The profiler: what every layer of a workload costs on a device, measured once.

The device is emulated: it has the memory and the link rates it is told to have, and computes
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
from torch import Tensor, nn
from tqdm import tqdm

from executor import link_profiler
from executor.device import CpuDevice, use_threads
from executor.errors import UsageError
from executor.flat import flat_bytes, spec_of
from executor.layer_check import batch, blamed, check_chain, layer_place
from executor.layer_profiler import Case, layer_cost, update_cost
from executor.layers import split, ties
from executor.workload import Task, build, load
from plans.schema import Device as DeviceSpec
from profiles import console, schema
from profiles.codec import align
from profiles.units import show_bytes, show_us

HOST_SHARE = 0.8  # of the memory that is available now
THREADS = 1  # of each emulated device
SLOWEST = 100_000  # bytes per second of a link; over a slower one even a small copy lasts long

Tick = Callable[[], object]


@dataclass(frozen=True)
class Options:
    """The machine to emulate: `devices` of device_bytes each, with links as in `emulation`.

    samples: of each time, fewer where one is long. host_bytes None: what the machine has free.
    """

    device_bytes: int
    emulation: schema.Emulation
    devices: int = 2
    samples: int = 9
    host_bytes: int | None = None


def profile(ref: str, options: Options) -> schema.Profile:
    """Measure all layers of the workload `ref`; WorkloadError for one that cannot be cut."""
    _check(options)
    tasks, digest = load(ref)
    workload = schema.Workload(ref, digest)
    threads = torch.get_num_threads()
    use_threads(THREADS)
    try:
        machine = _machine(options)
        with tqdm(total=0, unit="layer", disable=None, file=sys.stderr) as bar:
            measured = tuple(_task(task, workload, options, bar) for task in tasks)
    finally:
        use_threads(threads)
    return schema.Profile(machine=machine, tasks=measured, provenance=_provenance(options))


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
    link = options.emulation
    limits = (
        ("--devices", options.devices, 1, 64),
        ("--samples", options.samples, 1, 1000),
        ("--latency-us", link.latency_us, 0, 100_000),
    )
    for flag, value, least, most in limits:
        if value < least:
            raise UsageError(f"{flag} is {value}; {least} is the least")
        if value > most:
            raise UsageError(f"{flag} is {value}; {most} is the most")
    for flag, rate in (("--h2d", link.h2d_bytes_per_s), ("--d2h", link.d2h_bytes_per_s)):
        if rate < SLOWEST:
            raise UsageError(f"{flag} is {rate} bytes per second; {SLOWEST} is the least")


def _task(
    task: Task, workload: schema.Workload, options: Options, bar: "tqdm[None]"
) -> schema.Task:
    model, _ = build(task)
    with blamed(f"task {task.name}"):
        layers = split(model)
    inputs, targets = batch(task)
    check_chain(task, layers, inputs, targets)
    sizes = microbatch_sizes(len(inputs))
    bar.total += len(layers) * len(sizes)
    bar.set_description(task.name)
    return schema.Task(
        name=task.name,
        workload=workload,
        steps=task.steps,
        batch=len(inputs),
        optimizer=_optimizer_name(task, list(model.parameters())),
        batches=tuple(
            schema.BatchCost(n, align(inputs[:n].nbytes) + align(targets[:n].nbytes)) for n in sizes
        ),
        ties=ties(layers),
        layers=tuple(_layers(task, layers, inputs, targets, options, bar.update)),
    )


def _layers(
    task: Task,
    layers: list[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    options: Options,
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
            costs = []
            for case in cases:
                cost, xs[len(case.x)] = layer_cost(case, options.devices, options.samples)
                costs.append(cost)
                tick()
            measured.append(_layer(cases[-1], owned, tuple(costs), options))
    return measured


def _layer(
    case: Case,
    owned: list[nn.Parameter],
    costs: tuple[schema.LayerCost, ...],
    options: Options,
) -> schema.Layer:
    """A layer's record; `case` is the whole batch, `owned` the parameters that count in it."""
    update = update_cost(case, owned, options.devices, options.samples)
    return schema.Layer(
        name=type(case.layer).__name__,
        param_bytes=flat_bytes(spec_of(p) for p in owned),
        grad_bytes=flat_bytes(spec_of(p) for p in owned if p.requires_grad),
        state_bytes=update.state_bytes,
        buffer_bytes=sum(align(b.nbytes) for b in case.layer.buffers()),
        update_peak_bytes=update.peak_bytes,
        update_device=update.time,
        update_host=update.time,  # the same code on the same cores
        costs=costs,
    )


def _optimizer_name(task: Task, parameters: list[nn.Parameter]) -> str:
    if not parameters:
        return "none"
    with blamed(f"task {task.name}: optimizer"):
        return type(task.optimizer(parameters)).__name__


def _machine(options: Options) -> schema.Machine:
    emulation = options.emulation
    slowest = min(emulation.h2d_bytes_per_s, emulation.d2h_bytes_per_s)
    spec = DeviceSpec(
        name="cpu",
        kind="cpu",
        budget_bytes=link_profiler.SLAB_BYTES,
        threads=THREADS,
        emulation=emulation,
    )
    links = link_profiler.links(CpuDevice(spec, link_profiler.SLAB_BYTES), slowest, options.samples)
    devices = tuple(
        schema.Device(
            name=f"cpu{number}",
            kind="cpu",
            usable_bytes=options.device_bytes,
            threads=THREADS,
            links=links,
            emulation=emulation,
        )
        for number in range(options.devices)
    )
    host = schema.Host(options.host_bytes or _free_bytes(), os.cpu_count() or 1)
    return schema.Machine(devices, host, load=options.devices)


def _free_bytes() -> int:
    """A share of the memory that is available; of all memory where that is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        return int(kib * 1024 * HOST_SHARE)
    except (OSError, StopIteration, ValueError):
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return int(pages * page * HOST_SHARE)


def _provenance(options: Options) -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": _cpu_model(),
        "timing": f"emulated devices, {options.devices} computing at once",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(row.partition(":")[2].strip() for row in lines if row.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
