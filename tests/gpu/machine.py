"""What the suite ran on, as far as the machine tells; nothing is changed."""

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "msgspec", "pulp", "highspy", "transformers", "deepspeed")
_QUERY = (
    "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,"
    "temperature.gpu,power.draw,pcie.link.gen.current,pcie.link.width.current"
)


def describe() -> dict[str, Any]:
    """Date, versions, processor, memory, and what the driver says of the first device."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "host_bytes": host_bytes(),
        "gpu": gpu(),
    }


def gpu() -> dict[str, str]:
    """The driver's answers for the first device; empty where there is none."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = (value.strip() for value in done.stdout.splitlines()[0].split(","))
    return dict(zip(_QUERY.split(","), values, strict=False))


def host_bytes() -> int:
    """All of the host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model n"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
