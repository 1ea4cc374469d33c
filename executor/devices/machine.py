"""Opening the devices of a plan: the one place that knows which kinds of devices there are."""

import os
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from executor.devices.cpu import CpuDevice, links_of
from executor.devices.cuda import CudaDevice, CudaSource
from executor.devices.device import Device
from executor.errors import UsageError
from executor.numerics import CpuSource, Source
from plans.order import node_count
from plans.schema import Device as Spec
from plans.schema import Plan
from profiles.schema import GPU, Numerics

# Read when the driver and NCCL are first used, each unless somebody has set it.
_ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # with the usual 8, streams wait for each other's ops
    # A connection has a buffer for each channel, which no plan knows of, and a transfer takes a
    # multiprocessor for each.
    "NCCL_BUFFSIZE": str(1 << 20),
    "NCCL_MAX_P2P_NCHANNELS": "8",
}


def expect_nodes(plan: Plan, nodes: int) -> None:
    """UsageError unless the plan is for so many nodes."""
    planned = node_count(plan)
    if planned != nodes:
        how = f"start torchrun --nnodes {planned} --nproc-per-node N "
        if planned > 1:
            how += "--rdzv-backend c10d --rdzv-endpoint HOST:PORT -m executor run PLAN on each"
        else:
            how += "-m executor run PLAN on one, or build for --nodes"
        raise UsageError(f"the plan is for {planned} node(s), and this run is on {nodes}; {how}")


def open_devices(
    specs: Sequence[Spec], slabs: Sequence[int], *, first: int = 0, casts: bool = False
) -> list[Device]:
    """The devices of a plan with slabs of so many bytes; UsageError for one that is not there, and
    for devices that do not draw the same random numbers. `first`: the number of the first
    one on the machine. `casts`: some parameters are made from masters on their way in."""
    kinds = sorted({spec.kind for spec in specs})
    if len(kinds) > 1:
        raise UsageError(
            f"the plan has {' and '.join(kinds)} devices, whose generators draw different random "
            "numbers; build one plan for each"
        )
    if GPU in kinds:
        os.environ |= _ENVIRONMENT | os.environ
    made: list[Device] = []
    with ExitStack() as opened:  # closes them if one of the next cannot be opened
        for index, (spec, slab) in enumerate(zip(specs, slabs, strict=True), first):
            if spec.kind == GPU:
                made.append(CudaDevice(spec, slab, index, casts=casts))
            else:
                links = links_of(spec.emulation) if spec.emulation else None
                made.append(CpuDevice(spec, slab, links))
            opened.callback(made[-1].close)
        opened.pop_all()
    return made


def default_source(kind: str) -> Source:
    """The default generator that models on a device of this kind draw from."""
    return CudaSource(0) if kind == GPU else CpuSource()


def first_gpu(most_bytes: int, threads: int) -> Spec:
    """The first GPU of the machine, with a budget of so many bytes at most."""
    return Spec(f"{GPU}:0", GPU, most_bytes, threads)


def gpu_count() -> int:
    """The GPUs that torch sees."""
    return torch.cuda.device_count()


def backend_of(kind: str) -> str:
    """The backend of torch.distributed that moves the slabs of devices of this kind."""
    return "nccl" if kind == GPU else "gloo"


def sent_by(backend: str, index: int) -> Tensor:
    """A byte in memory that a backend sends from: that of the machine's `index`-th device."""
    where = torch.device(GPU, index) if backend == "nccl" else None
    return torch.zeros(1, dtype=torch.uint8, device=where)


def apply(numerics: Numerics) -> None:
    """Set the process-wide switches that decide which bits come out."""
    torch.backends.cuda.matmul.allow_tf32 = numerics.tf32
    torch.backends.cudnn.allow_tf32 = numerics.tf32
    # As torch.use_deterministic_algorithms, which loads a compiler besides.
    torch.set_deterministic_debug_mode("error" if numerics.deterministic else "default")
    # Nothing reads what is not written, and filling would be an op before each.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    if numerics.deterministic:  # read by cuBLAS when its first handle is made
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
