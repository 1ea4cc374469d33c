"""What a plan runs on: the one place that knows which kinds of devices there are."""

import os
from collections.abc import Sequence

import torch

from executor.cpu import CpuDevice, Pageable
from executor.cuda import CudaDevice, CudaSource, PageLocked
from executor.device import Device, HostMemory
from executor.rng import CpuSource, Source
from plans.schema import Device as Spec
from profiles.schema import Numerics


def open_devices(specs: Sequence[Spec], slabs: Sequence[int]) -> list[Device]:
    """The devices of a plan with slabs of so many bytes; UsageError for one that is not there."""
    made: list[Device] = []
    for index, (spec, slab) in enumerate(zip(specs, slabs, strict=True)):
        made.append(CudaDevice(spec, slab, index) if spec.kind == "cuda" else CpuDevice(spec, slab))
    return made


def host_memory(specs: Sequence[Spec]) -> HostMemory:
    """Page-locked memory if any of the devices copies by itself."""
    return PageLocked() if any(spec.kind == "cuda" for spec in specs) else Pageable()


def default_source(kind: str) -> Source:
    """Where the random numbers of a model on a device of this kind come from."""
    return CudaSource(0) if kind == "cuda" else CpuSource()


def apply(numerics: Numerics) -> None:
    """Set the process-wide switches that decide which bits come out."""
    torch.backends.cuda.matmul.allow_tf32 = numerics.tf32
    torch.backends.cudnn.allow_tf32 = numerics.tf32
    torch.use_deterministic_algorithms(numerics.deterministic)
    if numerics.deterministic:  # read by cuBLAS when its first handle is made
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
