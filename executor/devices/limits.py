"""Memory and cores that this process may use: those of the machine, or of its container."""

import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")  # of a container, as it sees itself
_MEMORY = (  # limit, use, and a table of the use, in version 2 and in version 1
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_QUOTA = "cpu.max"  # µs of all cores together in a period of so many µs
_OLD_QUOTA = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def free_host_bytes() -> int | None:
    """Bytes of memory that are available now; None where the system does not say."""
    found = [free for free in (_available(), _unlimited()) if free is not None]
    return min(found, default=None)


def cores() -> list[int]:
    """Numbers of the cores that this process may use, no more of them than its quota has time for:
    with more threads than that the system stops all of them, those that launch as well."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    own = sorted(os.sched_getaffinity(0))
    quota = _quota()
    return own if quota is None else own[: max(1, quota)]


def _available() -> int | None:
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(r.split()[1]) for r in lines if r.startswith("MemAvailable:"))
    return None


def _unlimited() -> int | None:
    """Bytes that the container's limit leaves, files in memory not counted; None without one."""
    for limit, used, table in _MEMORY:
        with suppress(OSError, ValueError):
            left = int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
            rows = dict(line.split() for line in (_CGROUP / table).read_text().splitlines())
            return max(0, left + int(rows.get("inactive_file", 0)))
    return None


def _quota() -> int | None:
    """Whole cores that the container's quota is worth; None without one."""
    with suppress(OSError, ValueError):
        quota, period = map(int, (_CGROUP / _QUOTA).read_text().split())
        return quota // period
    with suppress(OSError, ValueError):
        quota, period = (int((_CGROUP / name).read_text()) for name in _OLD_QUOTA)
        return quota // period if quota > 0 else None
    return None
