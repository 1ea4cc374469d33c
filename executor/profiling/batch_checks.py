"""Checks that batches of a task are alike; several are tried, as data is a function of the step.

A timetable is one for all steps: shapes, the way that the model's own code takes and the number of
random draws must be the same in each. What differs in the batches tried here would end a run.
"""

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from torch import nn

from executor.cutting import Gap
from executor.devices import Device
from executor.errors import RunError, WorkloadError
from executor.numerics import Layout, OwnRandomness, hold
from executor.profiling.bench import Case, first_output, moved, on_device
from executor.profiling.layer_checks import blamed, layer_place, samples
from executor.shards import Shard
from executor.workload import Batch, Task, batch_bytes, batch_of, changed, data_by_number, part

_PATIENCE_S = 5.0  # data that takes longer is not asked for later steps
_PARTS = 8  # of a batch that are tried of each microbatch size

Batches = Mapping[int, Batch]  # by step, whole ones

PAD = (
    'pad every sample to one length (a Hugging Face tokenizer with padding="max_length") and drop '
    "the last batch where it is smaller"
)
SAME_DRAWS = (
    "to cut its batches, let it draw the same number each time: padded input instead of a packed "
    "sequence, or no dropout in the recurrent layers; layerdrop=0 in a Hugging Face model's config "
    "(encoder_layerdrop, decoder_layerdrop)"
)


def steps_tried(steps: int) -> list[int]:
    """The first three steps, an early and a late one, and the last; each time the same."""
    pick, middle = random.Random(steps), max(4, round((3 * steps) ** 0.5))
    spans = [(low, min(high, steps)) for low, high in ((3, middle), (middle, steps))]
    some = [pick.randrange(low, high) for low, high in spans if low < high]
    return sorted({step for step in (0, 1, 2, *some, steps - 1) if step < steps})


def told(steps: Iterable[int]) -> str:
    """Which batches were tried, in words."""
    return f"tried: {', '.join(f'data({step})' for step in steps)}"


def batches_of(task: Task, first: Batch) -> dict[int, Batch]:
    """Batches of several steps, `first` being that of step 0. WorkloadError for one that cannot be
    had, or is of another form than the first."""
    found, known = {0: first}, _layouts(first)
    start = time.monotonic()
    steps = steps_tried(task.steps)
    for step in steps[1:]:
        if time.monotonic() - start > _PATIENCE_S:
            break
        with blamed(f"task {task.name}: data({step})"):
            with OwnRandomness():
                batch = batch_of(task, step)
            layouts = _layouts(batch)
            if layouts != known:
                raise RunError(f"{changed(known, layouts)}; {PAD}; {told([*found, step])}")
        found[step] = batch
    return found


def check_evaluation(task: Task, first: Batch) -> None:
    """WorkloadError for evaluation whose first or last batch is not as large as one of training."""
    if task.evaluate is None:
        return
    asked = replace(task, data=data_by_number(task.evaluate, task.evaluate.batches))
    for number in sorted({0, task.evaluate.batches - 1}):
        with blamed(f"task {task.name}: evaluation data({number})"):
            with OwnRandomness():
                batch = batch_of(asked, number)
            mine, theirs = samples(batch), samples(first)
            if mine != theirs:
                raise RunError(f"returned {mine} samples, and training's batches have {theirs}")
            mine, theirs = batch_bytes(batch), batch_bytes(first)
            if mine != theirs:
                raise RunError(
                    f"returned {mine} bytes, and training's batches have {theirs}; {PAD}"
                )


def _layouts(batch: Batch) -> tuple[Layout, Layout]:
    return hold(batch.inputs).layout, hold(batch.targets).layout


def varying(
    task: Task,
    layers: Sequence[nn.Module],
    batches: Batches,
    sizes: Sequence[int],
    largest: int,
    device: Device,
) -> dict[int, str]:
    """Layers, by index, whose number of random draws varies, in so much of each batch or in
    the smallest microbatch. WorkloadError when a batch goes another way through the model."""
    found = _run_all(task, layers, batches, largest, device)
    for size in (size for size in sizes if size < largest):
        with suppress(WorkloadError):  # it may be too small for the model
            return _run_all(task, layers, batches, size, device) | found
    return found


def _run_all(
    task: Task, layers: Sequence[nn.Module], whole: Batches, size: int, device: Device
) -> dict[int, str]:
    """Run so much of each batch through all layers."""
    batches = {step: part(batch, 0, size) for step, batch in whole.items()}
    inputs = {step: moved(batch.inputs, device.where) for step, batch in batches.items()}
    xs, found = dict(inputs), {}
    for index in range(len(layers)):
        shard = _shard(task, layers, index, xs[0], samples(batches[0]), device)
        counts: dict[int, int | None] = {}
        for step, x in xs.items():
            with _tried(task, layers, index, step, batches):
                xs[step], counts[step] = _run(shard, x, inputs[step], device)
        for step, count in counts.items():
            if count != counts[0] and index not in found:
                found[index] = (
                    f"{_draws(counts[0])} for data(0) and {_draws(count)} for data({step})"
                )
    return found


def sizes_that_go(
    task: Task, layers: Sequence[nn.Module], batches: Batches, sizes: Sequence[int], device: Device
) -> dict[int, str]:
    """Why microbatches of some sizes go another way through the model's own code before its first
    layer, where it looks at their values, by size."""
    found: dict[int, str] = {}
    if not any(isinstance(module, Gap) and module.chooses for module in layers[0].modules()):
        return found
    shard = _shard(task, layers, 0, batches[0].inputs, samples(batches[0]), device)
    for size in sizes:
        for step, batch in batches.items():
            parts = range(0, samples(batch) - size + 1, size)
            for begin in random.Random(step).sample(parts, min(_PARTS, len(parts))):
                inputs = moved(part(batch, begin, size).inputs, device.where)
                try:
                    with _tried(task, layers, 0, step, batches):
                        _run(shard, inputs, inputs, device)
                except WorkloadError as error:
                    found.setdefault(size, f"samples {begin} to {begin + size - 1}: {error}")
    return found


@contextmanager
def _tried(
    task: Task, layers: Sequence[nn.Module], index: int, step: int, batches: Batches
) -> Iterator[None]:
    """Around a layer's run on the batch of a step."""
    try:
        with blamed(f"{layer_place(task, index, layers[index])}: data({step})"):
            yield
    except WorkloadError as error:
        raise WorkloadError(f"{error}; {told(batches)}") from error.__cause__


def _shard(
    task: Task, layers: Sequence[nn.Module], index: int, x: Any, count: int, device: Device
) -> Shard:
    """One layer on the device."""
    with blamed(layer_place(task, index, layers[index])):
        return on_device(Case(task, layers[index], x, None, index == 0, count), device)


def _run(shard: Shard, x: Any, inputs: Any, device: Device) -> tuple[Any, int | None]:
    """The layer's output and its draws; from one run to the next the random numbers go on."""
    before = device.source.get()
    made, _ = first_output(shard, device, hold(x), inputs)
    return made, device.source.count(before, device.source.get())


def _draws(count: int | None) -> str:
    return "an unknown number" if count is None else str(count)
