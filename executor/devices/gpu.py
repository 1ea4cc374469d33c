"""A machine with GPUs: bytes for plans, cores for updates, what to note of it."""

import os
import subprocess

import torch

from executor.devices.limits import cores
from executor.errors import UsageError

LAUNCH_CORES = 4  # for the threads that launch: compute, both directions, the main thread
MARGIN = 50  # a 50th of a budget is left to what the allocator loses between its blocks
LEAST_MARGIN = 64 << 20

_QUERIES = {"driver": "driver_version", "clocks": "clocks.sm,clocks.mem,clocks.max.sm"}


def usable(device: torch.device, offered: int | None) -> int:
    """Bytes that plans may use of `offered` bytes of device memory (None: what is free now).

    Memory that the driver and the libraries keep for themselves is not offered to plans.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    taken = total - free  # the driver's context, the libraries' workspaces, other processes
    most = min(offered or total, total) - taken
    left = most - margin(most)
    if left <= 0:
        raise UsageError(
            f"--device-memory offers {min(offered or total, total)} bytes, the driver, its "
            f"libraries and other processes take {taken}; offer more than {taken + LEAST_MARGIN} "
            f"(torch itself holds {reserved})"
        )
    return left


def margin(budget_bytes: int) -> int:
    """Bytes of device memory beside a budget that the allocator may lose between its blocks."""
    return max(LEAST_MARGIN, budget_bytes // MARGIN)


def update_cores() -> set[int]:
    """The cores for updates in host memory: all but those of the launching threads.

    Empty where there are too few to part.
    """
    own = cores() if hasattr(os, "sched_setaffinity") else []
    return set(own[LAUNCH_CORES:]) if len(own) >= 2 * LAUNCH_CORES else set()


def update_threads(count: int, devices: int) -> int:
    """Threads of one device's updates in host memory, on a machine of so many cores."""
    return max(1, (count - LAUNCH_CORES if count >= 2 * LAUNCH_CORES else count) // devices)


def describe(device: torch.device) -> dict[str, str]:
    """A GPU in a profile: its name, driver, clocks, and what torch was built for."""
    properties = torch.cuda.get_device_properties(device)
    noted = {"gpu": str(properties.name), "cuda": str(torch.version.cuda)}
    return noted | {key: _asked(query, device) for key, query in _QUERIES.items()}


def _asked(query: str, device: torch.device) -> str:
    """One answer of nvidia-smi, which only reads; empty where it is not there."""
    asked = f"--query-gpu={query}", "--format=csv,noheader", f"--id={device.index or 0}"
    try:
        return subprocess.check_output(["nvidia-smi", *asked], text=True, timeout=10).strip()
    except (OSError, subprocess.SubprocessError):
        return ""
