"""Settings for all tests: reproducible properties, and GPU tests skipped where there is no GPU."""

import importlib.util

import pytest
from hypothesis import settings

settings.register_profile("gantry", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("gantry")


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


_LONG = (  # files that take longest, in a run that gives each file to one process
    "test_corrections",
    "test_end_to_end",
    "test_sweep",
    "test_mutations",
    "test_suite",
    "test_builder",
    "test_bad_input",
    "test_odd_models",
    "test_go_on",
    "test_cuda",
    "test_notebooks",
    "test_rounds",
    "test_speed",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that none is left alone at the end; skip tests marked gpu on a machine
    without one."""
    items.sort(key=lambda item: item.path.stem not in _LONG)
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
