"""Containers: their limits of memory and cores, as the system writes them down."""

from pathlib import Path

import pytest

from executor.devices import limits


def written(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    monkeypatch.setattr(limits, "_available", lambda: 1000)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    return tmp_path


TWO = {
    "memory.max": "900\n",
    "memory.current": "500\n",
    "memory.stat": "anon 3\ninactive_file 70\n",
}
ONE = {
    "memory/memory.limit_in_bytes": "900\n",
    "memory/memory.usage_in_bytes": "500\n",
    "memory/memory.stat": "inactive_file 70\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 1000),
        (TWO, 470),
        (ONE, 470),
        (TWO | {"memory.max": "max\n"}, 1000),
        (ONE | {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1000),
        (TWO | {"memory.current": "990\n"}, 0),
    ],
)
def test_free_memory_is_what_the_container_may_take(
    files: dict[str, str], free: int, group: Path
) -> None:
    """The machine has 1,000 bytes; files in memory are given back where others need it."""
    written(group, files)
    assert limits.free_host_bytes() == free


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu.max": "9900000 100000\n"}, 8),
    ],
)
def test_cores_are_those_that_the_quota_has_time_for(
    files: dict[str, str], cores: int, group: Path
) -> None:
    """Of eight cores that the process may run on."""
    written(group, files)
    assert limits.cores() == list(range(cores))
