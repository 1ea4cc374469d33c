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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu on a machine without one."""
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
