"""The demo's tasks, cut to few steps."""

from dataclasses import replace

from executor.workload.task import Task
from executor.workloads import bytes_lm


def demo() -> list[Task]:
    """All four, two steps each."""
    return [replace(task, steps=2) for task in bytes_lm.demo()]
