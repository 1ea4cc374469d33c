"""The cost of a disk: the rates of the files in which idle tasks wait, written and read cold."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from executor.devices import HostMemory
from executor.outputs import free_bytes
from executor.profiling.links import fit
from executor.shards import StateFile, open_files, remove
from profiles.schema import Disk, Rate

LARGEST = 32 << 20
SHARE = 0.9  # of what is free now
SAMPLES = 3

Copy = Callable[[StateFile, torch.Tensor], None]


def measure(folder: Path, memory: HostMemory) -> Disk:
    """Rates and room of files in `folder`; RunError when it has no room for the measurement.

    Nothing is left there."""
    flat = memory.take(LARGEST)
    noise = torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=torch.Generator())
    flat.copy_(noise)  # zeros would be left out by some file systems
    files = open_files(folder, {"small": LARGEST // 32, "large": LARGEST})
    try:
        for file in files.values():
            file.write([flat[: file.size]])  # the first time finds the file its place
        write = _rate(files, flat, lambda file, part: file.write([part]))
        read = _rate(files, flat, lambda file, part: file.read([part]))
        usable = max(1, int(free_bytes(folder) * SHARE))
    finally:
        remove(files)
    return Disk(usable, read, write)


def _rate(files: dict[str, StateFile], flat: torch.Tensor, copy: Copy) -> Rate:
    """The line through the median times of both files."""
    points = []
    for name in ("small", "large"):
        file, times = files[name], []
        for _ in range(SAMPLES):
            start = time.perf_counter_ns()
            copy(file, flat[: file.size])
            times.append((time.perf_counter_ns() - start) / 1000)
        points.append((file.size, max(0.001, median(times))))
    return fit(points[0], points[1])
