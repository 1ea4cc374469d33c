"""Workloads: the tasks a user writes, their data and losses; Hugging Face models by name."""

from executor.workload.batches import (
    Batches,
    batch_bytes,
    batch_of,
    changed,
    counting,
    data_by_number,
    held_batch,
    part,
    staging_bytes,
    weight_function,
)
from executor.workload.contents import Content, Share, Weigh, shares
from executor.workload.datasets import Loader, loader, reading, samples_of
from executor.workload.draws import draws_of
from executor.workload.feed import Feed, OnPart, evaluation_feed, mean_of
from executor.workload.fingerprint import built_fingerprint, fingerprint_of, settings_of
from executor.workload.huggingface import causal_lm
from executor.workload.loading import NO_CACHE, Wanted, caching, load, load_sweep, load_tasks
from executor.workload.loss import Batch, Ending, loss_in
from executor.workload.packed import (
    beginning,
    check_alike,
    held_out,
    joined,
    lengths_of,
    pack,
    padded,
    padding,
    take,
    weight_of,
)
from executor.workload.steps import (
    Shape,
    Steps,
    judged_steps,
    planned_shapes,
    steps_of,
)
from executor.workload.sweep import Sweep, grid, hyperband
from executor.workload.task import Evaluation, Task, build
