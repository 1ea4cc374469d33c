"""Workloads: the tasks a user writes, their data and losses; Hugging Face models by name."""

from executor.workload.batches import (
    Batches,
    batch_bytes,
    batch_of,
    changed,
    data_by_number,
    held_batch,
    part,
    staging_bytes,
)
from executor.workload.loading import NO_CACHE, caching, load
from executor.workload.loss import Batch, Ending, loss_in
from executor.workload.packed import (
    beginning,
    joined,
    lengths_of,
    pack,
    padded,
    padding,
    take,
    tokens_of,
)
from executor.workload.steps import Steps, Table, steps_of, tables_of
from executor.workload.task import Evaluation, Task, build

__all__ = [
    "NO_CACHE",
    "Batch",
    "Batches",
    "Ending",
    "Evaluation",
    "Steps",
    "Table",
    "Task",
    "batch_bytes",
    "batch_of",
    "beginning",
    "build",
    "caching",
    "changed",
    "data_by_number",
    "held_batch",
    "joined",
    "lengths_of",
    "load",
    "loss_in",
    "pack",
    "padded",
    "padding",
    "part",
    "staging_bytes",
    "steps_of",
    "tables_of",
    "take",
    "tokens_of",
]
