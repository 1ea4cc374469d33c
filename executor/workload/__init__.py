"""Workloads: the tasks a user writes, their data and losses; Hugging Face models by name."""

from executor.workload.batches import (
    Batches,
    batch_bytes,
    batch_of,
    changed,
    data_by_number,
    held_batch,
    inputs_of,
    part,
    staging_bytes,
)
from executor.workload.loading import NO_CACHE, Wanted, caching, load, load_tasks
from executor.workload.loss import Batch, Ending, loss_in
from executor.workload.task import Evaluation, Task, build

__all__ = [
    "NO_CACHE",
    "Batch",
    "Batches",
    "Ending",
    "Evaluation",
    "Task",
    "Wanted",
    "batch_bytes",
    "batch_of",
    "build",
    "caching",
    "changed",
    "data_by_number",
    "held_batch",
    "inputs_of",
    "load",
    "load_tasks",
    "loss_in",
    "part",
    "staging_bytes",
]
