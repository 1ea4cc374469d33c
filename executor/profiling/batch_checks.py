"""Checks that batches of a task are alike; several are tried, as data is a function of the step.

A timetable is one for all steps: shapes, the way that the model's own code takes and the number of
random draws must be the same in each. What differs in the batches tried here would end a run.
"""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import nn

from executor.cutting import Slice
from executor.devices import Device
from executor.errors import RunError, WorkloadError
from executor.numerics import Guard, Layout, OwnRandomness, hold
from executor.profiling.bench import Case, first_output, moved, on_device
from executor.profiling.layer_checks import (
    blamed,
    check_loss,
    checked_output,
    layer_place,
)
from executor.profiling.model_checks import names_of
from executor.workload import Batch, Task, batch_bytes, batch_of, changed, data_by_number, part

_PATIENCE_S = 5.0  # data that takes longer is not asked for later steps
_PARTS = 8  # of a batch that are tried of each microbatch size

PAD = (
    'pad every sample to one length (a Hugging Face tokenizer with padding="max_length") and drop '
    "the last batch where it is smaller"
)
SAME_DRAWS = (
    "to cut its batches, let it draw the same number each time: padded input instead of a packed "
    "sequence, or no dropout in the recurrent layers; layerdrop=0 in a Hugging Face model's config "
    "(encoder_layerdrop, decoder_layerdrop)"
)


@dataclass(frozen=True)
class Trial:
    """A task's layers, the batches by step that they are tried with, and where."""

    task: Task
    layers: Sequence[nn.Module]
    batches: Mapping[int, Batch]
    device: Device

    def place(self, index: int) -> str:
        """The name of a layer in errors."""
        return layer_place(self.task, index, self.layers[index])


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
    batches = task.evaluate.batches or 1
    asked = replace(task, data=data_by_number(task.evaluate, batches))
    for number in sorted({0, batches - 1}):
        with blamed(f"task {task.name}: evaluation data({number})"):
            with OwnRandomness():
                batch = batch_of(asked, number)
            pairs = {"samples": (batch.size, first.size)}
            pairs["bytes"] = batch_bytes(batch), batch_bytes(first)
            for what, (own, trained) in pairs.items():
                if own != trained:
                    raise RunError(
                        f"returned {own} {what}, and training's batches have {trained}; {PAD}"
                    )


def _layouts(batch: Batch) -> tuple[Layout, Layout]:
    return hold(batch.inputs).layout, hold(batch.targets).layout


def draws_that_vary(trial: Trial, sizes: Sequence[int]) -> dict[int, str]:
    """Run as much of the batches as the device holds through all layers, to refuse bad ones. The
    layers that draw a varying number of random numbers, there or in the smallest microbatch."""
    for size in reversed(sizes):
        try:
            found = check_chain(trial, size)
        except torch.OutOfMemoryError:
            continue
        for smaller in (n for n in sizes if n < size):
            with suppress(WorkloadError):  # it may be too small for the model
                return check_chain(trial, smaller) | found
        return found
    raise WorkloadError(f"task {trial.task.name}: not even one sample fits the device")


def check_chain(trial: Trial, size: int) -> dict[int, str]:
    """Run so much of each batch through all layers, and the first one through the loss. The layers
    that draw a varying number of random numbers, by index.

    WorkloadError names the first layer that cannot be run again, or that a batch takes another way
    through."""
    task, device, source = trial.task, trial.device, trial.device.source
    batches = {step: part(batch, 0, size) for step, batch in trial.batches.items()}
    inputs = {step: moved(batch.inputs, device.where) for step, batch in batches.items()}
    names, xs = names_of(trial.layers), dict(inputs)
    found: dict[int, str] = {}
    guard = Guard(source)
    for index, layer in enumerate(trial.layers):
        where, last = trial.place(index), index == len(trial.layers) - 1
        counts: dict[int, int | None] = {}
        with blamed(where):
            shard = on_device(Case(task, layer, xs[0], None, index == 0, size), device)
        for step, x in xs.items():
            state = source.get()
            if step == 0:
                with blamed(where):
                    xs[0] = checked_output(shard, device, x, inputs[0], names, last=last)
            else:
                with blamed(f"{where}: data({step})", told(batches)):
                    xs[step] = first_output(shard, device, hold(x), inputs[step])[0]
            counts[step] = source.count(state, source.get())
            if counts[step] != counts[0] and index not in found:
                found[index] = (
                    f"{_draws(counts[0])} for data(0) and {_draws(counts[step])} for data({step})"
                )
        with blamed(where):
            guard.check_host()
    check_loss(task, xs[0], batches[0], names, device)
    return found


def sizes_that_go_another_way(trial: Trial, sizes: Sequence[int]) -> dict[int, str]:
    """Why microbatches of some sizes go another way through the model's own code before its first
    layer, where it looks at their values, by size."""
    layer, device = trial.layers[0], trial.device
    found: dict[int, str] = {}
    if not any(isinstance(module, Slice) and module.chooses for module in layer.modules()):
        return found
    whole = trial.batches[0]
    with blamed(trial.place(0)):
        case = Case(trial.task, layer, whole.inputs, None, True, whole.size)
        shard = on_device(case, device)
    for size in sizes:
        for step, batch in trial.batches.items():
            parts = range(0, whole.size - size + 1, size)
            for begin in random.Random(step).sample(parts, min(_PARTS, len(parts))):
                inputs = moved(part(batch, begin, size).inputs, device.where)
                try:
                    with blamed(f"{trial.place(0)}: data({step})", told(trial.batches)):
                        first_output(shard, device, hold(inputs), inputs)
                except WorkloadError as error:
                    found.setdefault(size, f"samples {begin} to {begin + size - 1}: {error}")
    return found


def _draws(count: int | None) -> str:
    return "an unknown number" if count is None else str(count)
