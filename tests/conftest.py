"""Settings for all tests: reproducible properties, and GPU tests skipped where there is no GPU."""

import ctypes
import gc
import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker on each core, and models are tiny

import pytest
from hypothesis import settings
from support import kept
from support.clock import Clock
from support.searches import ALONE, QUICK, searching
from support.steady import timeless

# Hundreds of modules live as long as the process: going through them for every few hundred new
# objects would take a tenth of the time.
gc.set_threshold(20_000, 20, 20)
settings.register_profile("gantry", deadline=None, derandomize=True, max_examples=25)
settings.register_profile(
    "nightly", deadline=None, max_examples=400
)  # --hypothesis-profile nightly
settings.load_profile("gantry")


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    gc.freeze()


_used = 0  # bytes of this process, when memory was last given back


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tensors in cycles are few objects but many bytes: where a file of tests has left some, they
    are collected, and the memory is given back."""
    global _used
    if nextitem is None or nextitem.path == item.path:
        return
    if _resident() > _used + (200 << 20):
        gc.collect()
        with suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)
        _used = _resident()


def _resident() -> int:
    """The bytes of memory that this process has, where that can be known."""
    with suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, those of whole paths, so that none is left alone at the end of a run that
    gives each file to one process; tests marked gpu are skipped on a machine without one."""
    items.sort(key=lambda item: item.path.parent.name not in ("whole", "gpu"))
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Plans are kept for the other processes of this run, whose folders lie beside each other."""
    own = tmp_path_factory.getbasetemp()
    kept.keep_in((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kept")


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """The planner looks at a thirtieth of the candidates and says less of its bounds: for tests of
    what a plan says and does, not of how good it is. Processes of their own search in full."""
    with searching(QUICK):
        yield


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """As `quick`, and no task is searched on several devices at once: for tests of which programs
    on several devices are no part."""
    with searching(ALONE):
        yield


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Profiles leave the caches as they are between samples, which takes a tenth of the time: for
    tests that look at no times."""
    from executor.profiling import layer

    with mock.patch.object(layer, "CROWD_BYTES", 1):
        yield


@pytest.fixture(scope="module")
def untimed() -> Iterator[None]:
    """Profiles say of everything that it takes the same time, and measure none: for tests of what
    is done with profiles, not of how they are made."""
    with timeless():
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the plain loop has it; tiny models are slower on two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory is an empty one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Emulated devices go by a clock that nothing but their own waits moves."""
    from executor.devices import cpu, pace

    made = Clock()
    monkeypatch.setattr(cpu, "time", made)
    monkeypatch.setattr(pace, "time", made)
    return made


@pytest.fixture
def heard() -> Iterator[None]:
    """No signal is ignored, as some are in the background."""
    kinds = (signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(kind, signal.default_int_handler) for kind in kinds]
    yield
    for kind, known in zip(kinds, before, strict=True):
        signal.signal(kind, known)
