"""Opening the devices of a plan: the one place that knows which kinds of devices there are."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from executor.devices.cpu import CpuDevice, Links, Pageable
from executor.devices.cuda import CudaDevice, CudaSource
from executor.devices.device import Device, HostMemory
from executor.devices.pinned import PageLocked
from executor.errors import UsageError
from executor.numerics import CpuSource, Source
from plans.schema import Device as Spec
from profiles.schema import Numerics


def open_devices(
    specs: Sequence[Spec], slabs: Sequence[int], *, casts: bool = False
) -> list[Device]:
    """The devices of a plan with slabs of so many bytes; UsageError for one that is not there, and
    for devices that do not draw the same random numbers. `casts`: some parameters are made from
    masters on their way in."""
    kinds = sorted({spec.kind for spec in specs})
    if len(kinds) > 1:
        raise UsageError(
            f"the plan has {' and '.join(kinds)} devices, whose generators draw different random "
            "numbers; build one plan for each"
        )
    made: list[Device] = []
    try:
        _open(specs, slabs, made, casts)
    except BaseException:
        for device in made:
            device.close()
        raise
    return made


def _open(specs: Sequence[Spec], slabs: Sequence[int], made: list[Device], casts: bool) -> None:
    shared: dict[int, Links] = {}
    for index, (spec, slab) in enumerate(zip(specs, slabs, strict=True)):
        if spec.kind == "cuda":
            made.append(CudaDevice(spec, slab, index, casts=casts))
            continue
        links = None
        if spec.emulation and spec.link_group is not None:
            links = shared.setdefault(spec.link_group, Links.of(spec.emulation))
        made.append(CpuDevice(spec, slab, links))


def host_memory(specs: Sequence[Spec]) -> HostMemory:
    """Page-locked memory if any of the devices copies by itself."""
    return PageLocked() if any(spec.kind == "cuda" for spec in specs) else Pageable()


def free_host_bytes() -> int | None:
    """Memory that is available now; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(r.split()[1]) for r in lines if r.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def default_source(kind: str) -> Source:
    """Where the random numbers of a model on a device of this kind come from."""
    return CudaSource(0) if kind == "cuda" else CpuSource()


def apply(numerics: Numerics) -> None:
    """Set the process-wide switches that decide which bits come out."""
    torch.backends.cuda.matmul.allow_tf32 = numerics.tf32
    torch.backends.cudnn.allow_tf32 = numerics.tf32
    torch.use_deterministic_algorithms(numerics.deterministic)
    # Nothing reads what is not written, and filling would be an op before each.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    if numerics.deterministic:  # read by cuBLAS when its first handle is made
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
