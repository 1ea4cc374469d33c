"""GPUs by their datasheets, and how much of a datasheet a training step gets.

Nothing here is measured by us: it is what can be known before a GPU is rented. Peaks are dense
(no structured sparsity), in FLOP/s, of matrix products with 32-bit accumulation. Memory is what
`nvidia-smi` calls total. The fractions stand in one place, each with its source.
"""

from dataclasses import dataclass
from typing import Literal

from profiles.schema import Disk, Link, Rate

Dtype = Literal["fp32", "tf32", "fp16", "bf16"]
Generation = Literal["kepler", "pascal", "volta", "ampere", "ada", "hopper", "blackwell", "cdna3"]
Links = tuple[Link, Link]  # from the host and to it

MIB, GIB, GB, TERA = 1 << 20, 1 << 30, 10**9, 10**12

CONTEXT_BYTES = GIB
"""Memory that the driver's context, cuBLAS workspaces and fragmentation take."""

MATMUL: dict[Generation, dict[Dtype, float]] = {
    "kepler": {"fp32": 0.60},
    "pascal": {"fp32": 0.60},
    "volta": {"fp32": 0.75, "fp16": 0.60},
    "ampere": {"fp32": 0.75, "tf32": 0.70, "fp16": 0.70, "bf16": 0.70},
    "ada": {"fp32": 0.65, "tf32": 0.75, "fp16": 0.75, "bf16": 0.75},
    "hopper": {"fp32": 0.75, "tf32": 0.62, "fp16": 0.62, "bf16": 0.62},
    "blackwell": {"fp32": 0.75, "tf32": 0.62, "fp16": 0.62, "bf16": 0.62},
    "cdna3": {"fp32": 0.48, "tf32": 0.48, "fp16": 0.48, "bf16": 0.48},
}
"""Share of the peak that the large matrix products of a training step reach.

ampere, hopper, blackwell, cdna3: in bf16 the best shape of all reaches 86.9 % on A100, 80.3 % on
H100, 83.6 % on GH200, 77.6 % on B200, 60.1 % on MI300X (stas00/ml-engineering, "Maximum Achievable
Matmul FLOPS comparison table"); a model's own shapes about four fifths of that. Whole training
steps have been reported at 60 and 72 % of an A100 (FlashAttention, FlashAttention-2). pascal: what
is left of Harmony's BERT layer on a 1080 Ti (bert_96) after its memory-bound operators; kepler
likewise. volta: whole BERT steps have been reported at half the peak (DeepSpeed, 64 TFLOP/s). ada,
the 3090 and the 5090, and fp32 from Volta on: assumed.
"""

ATTENTION = 0.6
"""Rate of the products inside fused attention against those of linear layers: FlashAttention-2
reaches 50-73 % of an A100's peak at its best; less backward, on Hopper and at short lengths."""

BANDWIDTH = 0.8
"""Share of the memory bandwidth of a memory-bound kernel. BabelStream on GH200: 0.72-0.83 of
4 TB/s (UoB-HPC/BabelStream issue 194)."""

HOST_BANDWIDTH = 0.5
"""Share of the host's memory bandwidth that a fused optimizer step on the host gets: its threads
share the socket with the copies to and from the GPU. 100 GB/s on an A100's EPYC."""

CAST_BANDWIDTH = 0.25
"""Share of the host's memory bandwidth that casts of masters get: less than updates, which go on
at the same time. A cast of a bf16 parameter reads 4 bytes and writes 2."""

CAST_PIECE = 4 << 20
"""Bytes of parameters that are cast before their copy begins (executor/devices/casting.py)."""

LAUNCH_US = 5.0
"""Per kernel: what eager PyTorch needs to dispatch it. An assumption; it matters only where
microbatches are so small that kernels are as short as this."""

DISK = Disk(1000 * GB, read=Rate(3 * GB, 0), write=Rate(2 * GB, 0))
"""An NVMe drive of the size that comes with rented servers, by the data sheets of drives for PCIe 3
(3.0 to 3.5 and 2.0 to 3.0 GB/s of long reads and of long writes)."""

COPY_LATENCY_US = 10
"""Per copy: launch and DMA set-up. An assumption."""


def link(kind: Literal["h2d", "d2h", "d2d"], alone: float, both: float) -> Link:
    """Copies at these bytes per second, alone and while the other direction is busy."""
    latency = COPY_LATENCY_US
    return Link(kind, Rate(round(alone), latency), Rate(round(both), latency))


def _pcie(alone: float) -> Links:
    """PCIe, full duplex but for some of the way: 0.85 of the rate while both directions are busy.

    Between 0.98 (nvbandwidth on a mobile RTX 3050) and 0.5 for one direction (nvbandwidth issues
    11 and 53, A100) has been reported.
    """
    rate, both = alone * GB, 0.85 * alone * GB
    return link("h2d", rate, both), link("d2h", rate, both)


# Pinned rates alone: Harmony's bandwidth test (12.35 GB/s, 1080 Ti, PCIe 3); nvbandwidth issue 11
# (25-26 GB/s, A100, PCIe 4); nvbandwidth of eight-GPU Hopper servers (55.4 GB/s, PCIe 5).
_PCIE3, _PCIE4, _PCIE5 = _pcie(12.3), _pcie(25), _pcie(55)

# nvbandwidth on a GH200 480GB: 338 and 295 GB/s (SuperBench's test data). Together they cannot
# exceed the LPDDR5X behind them, 384 GB/s of the 480 GB variant.
_C2C = link("h2d", 338 * GB, 190 * GB), link("d2h", 295 * GB, 190 * GB)

_BEST: tuple[Dtype, ...] = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU and the part of a server that comes with it.

    peak: FLOP/s by dtype; what is not there the chip does not have. bytes_per_s: datasheet memory
    bandwidth. host_bytes_per_s: datasheet memory bandwidth of one socket of a typical host.
    host_bytes: by default offered to plans, twice the share of one GPU in a typical rented server
    (a task may use its neighbour's), but for GH200, whose memory is its own.
    """

    name: str
    generation: Generation
    peak: dict[Dtype, float]
    memory_bytes: int
    bytes_per_s: float
    links: Links
    host_bytes: int
    host_bytes_per_s: float
    host_cores: int

    def matmul_flops(self, dtype: Dtype) -> float:
        """FLOP/s of the matrix products of linear layers."""
        return self.peak[dtype] * MATMUL[self.generation][dtype]

    @property
    def best(self) -> Dtype:
        """The fastest numbers, bf16 before fp16 since its range needs no loss scale."""
        return next(dtype for dtype in _BEST if dtype in self.peak)

    @property
    def usable_bytes(self) -> int:
        """Memory for plans."""
        return self.memory_bytes - CONTEXT_BYTES


def _peaks(fp32: float, tf32: float, half: float) -> dict[Dtype, float]:
    """FLOP/s from TFLOP/s; those of fp16 and bf16 are equal."""
    return {"fp32": fp32 * TERA, "tf32": tf32 * TERA, "fp16": half * TERA, "bf16": half * TERA}


# All without sparsity. Data sheets: V100, SXM2 column; A100; H100, SXM column; B200, an eighth of a
# HGX board; MI300X; A10, L4, L40S. Whitepapers, with fp32 accumulation: GA102, Ada, RTX Blackwell.
_VOLTA: dict[Dtype, float] = {"fp32": 15.7 * TERA, "fp16": 125 * TERA}
_A100, _A10, _3090 = _peaks(19.5, 156, 312), _peaks(31.2, 62.5, 125), _peaks(35.6, 35.6, 71)
_4090, _L4, _L40S = _peaks(82.6, 82.6, 165.2), _peaks(30.3, 60, 121), _peaks(91.6, 183, 362)
_HOPPER = _peaks(67, 494.7, 989.4)
_5090, _B200 = _peaks(104.8, 104.8, 209.5), _peaks(75, 1125, 2250)
_MI300X = _peaks(163.4, 653.7, 1307.4)

# Host bandwidths: channels x rate of the sockets these GPUs come with. Xeon E5 v4: 4 x DDR4-2400;
# EPYC 7002: 8 x DDR4-3200; desktop: 2 x DDR5-5200; Xeon 4th generation: 8 x DDR5-4800.
_E5, _EPYC, _DESKTOP, _XEON4, _GRACE = 76.8 * GB, 204.8 * GB, 83.2 * GB, 307.2 * GB, 384.0 * GB

_TABLE = (
    # A K80 board is two GPUs; this is one of them, at its boost clock (K80 board specification).
    Gpu("k80", "kepler", {"fp32": 4.37 * TERA}, 11441 * MIB, 240e9, _PCIE3, 122 * GIB, _E5, 4),
    # GTX 1080 Ti specification: 3,584 cores at 1,582 MHz. Its fp16 arithmetic runs at 1/64.
    Gpu("1080ti", "pascal", {"fp32": 11.34 * TERA}, 11178 * MIB, 484e9, _PCIE3, 128 * GIB, _E5, 8),
    Gpu("v100-16", "volta", _VOLTA, 16160 * MIB, 900e9, _PCIE3, 122 * GIB, _E5, 8),
    Gpu("v100-32", "volta", _VOLTA, 32510 * MIB, 900e9, _PCIE3, 192 * GIB, _E5, 8),
    Gpu("a100-40", "ampere", _A100, 40536 * MIB, 1555e9, _PCIE4, 170 * GIB, _EPYC, 12),
    Gpu("a100-80", "ampere", _A100, 81251 * MIB, 2039e9, _PCIE4, 340 * GIB, _EPYC, 12),
    Gpu("a10", "ampere", _A10, 23028 * MIB, 600e9, _PCIE4, 96 * GIB, _EPYC, 12),
    Gpu("3090", "ampere", _3090, 24576 * MIB, 936e9, _PCIE4, 128 * GIB, _DESKTOP, 16),
    Gpu("4090", "ada", _4090, 24217 * MIB, 1008e9, _PCIE4, 128 * GIB, _DESKTOP, 16),
    Gpu("5090", "blackwell", _5090, 32607 * MIB, 1792e9, _PCIE5, 128 * GIB, _DESKTOP, 16),
    Gpu("l4", "ada", _L4, 23034 * MIB, 300e9, _PCIE4, 96 * GIB, _EPYC, 12),
    Gpu("l40s", "ada", _L40S, 46068 * MIB, 864e9, _PCIE4, 192 * GIB, _EPYC, 12),
    Gpu("h100", "hopper", _HOPPER, 81559 * MIB, 3350e9, _PCIE5, 512 * GIB, _XEON4, 24),
    Gpu("h200", "hopper", _HOPPER, 143771 * MIB, 4800e9, _PCIE5, 512 * GIB, _XEON4, 24),
    Gpu("gh200", "hopper", _HOPPER, 97871 * MIB, 4000e9, _C2C, 480 * GB, _GRACE, 72),
    Gpu("b200", "blackwell", _B200, 183359 * MIB, 7700e9, _PCIE5, 512 * GIB, _XEON4, 24),
    Gpu("mi300x", "cdna3", _MI300X, 196592 * MIB, 5300e9, _PCIE5, 460 * GIB, _XEON4, 12),
)

GPUS = {gpu.name: gpu for gpu in _TABLE}
