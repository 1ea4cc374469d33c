"""A profile of the user's own tasks from their shapes, which another process finds with torch."""

import subprocess
import sys
from collections.abc import Iterable
from itertools import chain, starmap
from typing import NamedTuple

from msgspec.structs import replace

from planner.estimate.gpus import GPUS, Dtype, Gpu
from planner.estimate.times import kernels_us, machine, time_of, update_times
from profiles import schema
from profiles.errors import FormatError
from profiles.schema import LayerCost, Precision, Profile
from profiles.works import Kernels, Work, Works, decode

_DTYPE: dict[Precision, Dtype] = {"bf16-autocast": "bf16", "bf16": "bf16", "fp16-autocast": "fp16"}


def works_of(ref: str) -> Works:
    """The works of the workload `ref`; FormatError, in its words, where the other process fails."""
    done = subprocess.run([sys.executable, "-m", "executor.shapes", ref], capture_output=True)
    said = done.stderr.decode(errors="replace").strip()
    for line in said.splitlines():
        if line.startswith("note: "):
            print(line, file=sys.stderr)
    if done.returncode:
        why = said.rpartition("error: ")[2]
        raise FormatError(why or f"{ref}: the process that looked at it was killed")
    return decode(done.stdout)


def estimate_own(
    works: Works,
    name: str,
    dtype: Dtype | None = None,
    device_bytes: int | None = None,
    host_bytes: int | None = None,
    steps: int | None = None,
) -> Profile:
    """A sound profile, marked estimated, of these works on a GPU. dtype: fp32 or tf32, of the
    products of tasks in fp32. steps: of every task, instead of its own. FormatError for what the
    GPU does not have."""
    if name not in GPUS:
        raise FormatError(f"GPU {name!r} is not known; there are {', '.join(GPUS)}")
    if dtype not in (None, "fp32", "tf32"):
        raise FormatError(f"--dtype {dtype} is what tasks say, as precision; give fp32 or tf32")
    gpu, tasks, dtypes = GPUS[name], list[schema.Task](), dict[Dtype, None]()
    for task, moments, layers in zip(works.tasks, works.moments, works.layers, strict=True):
        own = _Numbers.of(task, dtype, layers)
        for one in own.needed:
            if one not in gpu.peak:
                has = " and ".join(gpu.peak)
                raise FormatError(f"task {task.name} trains in {one}; {name} has {has}")
        dtypes |= dict.fromkeys(own.needed)
        pairs = zip(task.layers, layers, strict=True)
        timed = (_timed(layer, work, moments, own, gpu) for layer, work in pairs)
        tasks.append(replace(task, steps=steps or task.steps, layers=tuple(timed)))
    casts = any(task.precision == "bf16" for task in tasks)
    return Profile(
        machine=machine(gpu, device_bytes, host_bytes, casts=casts),
        tasks=tuple(tasks),
        estimated=True,
        provenance={"gpu": name, "dtype": ", ".join(dtypes), "source": "planner estimate"},
    )


class _Numbers(NamedTuple):
    """The numbers of a task's products, and of those whose tensors have two bytes."""

    plain: Dtype
    low: Dtype
    needed: tuple[Dtype, ...]

    @classmethod
    def of(cls, task: schema.Task, asked: Dtype | None, layers: Iterable[Work]) -> "_Numbers":
        plain = _DTYPE.get(task.precision, asked or "fp32")
        low: Dtype = plain if plain == "fp16" else "bf16"
        known = {kernel[3] for work in layers for pair in work.costs for kernel in chain(*pair)}
        return cls(plain, low, tuple(dict.fromkeys((plain, low) if True in known else (plain,))))

    def us(self, kernels: Kernels, gpu: Gpu) -> float:
        """The time of these kernels, one after the other."""
        dtypes = {False: self.plain, True: self.low}
        return sum(kernels_us([kernel[:3]], dtypes[kernel[3]], gpu) for kernel in kernels)


def _timed(layer: schema.Layer, work: Work, moments: int, own: _Numbers, gpu: Gpu) -> schema.Layer:
    def cost(known: LayerCost, kernels: tuple[Kernels, Kernels]) -> LayerCost:
        forward, backward = (own.us(each, gpu) for each in kernels)
        return replace(
            known,
            forward=time_of(forward),
            backward=time_of(backward),
            recompute_backward=time_of(forward + backward),
        )

    on_device, on_host = update_times(work.trained, moments, gpu)
    norm = kernels_us([(0, layer.grad_bytes, False)], own.plain, gpu)
    return replace(
        layer,
        update_device=on_device,
        update_host=on_host,
        norm=layer.norm and time_of(norm),
        costs=tuple(starmap(cost, zip(layer.costs, work.costs, strict=True))),
    )
