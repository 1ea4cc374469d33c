"""What a layer must be so that it can be cut, moved and run again: refusals before measuring."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from executor.bench import Case, checked_output, on_device
from executor.device import Device
from executor.errors import WorkloadError, one_line
from executor.precision import computing
from executor.rng import DrawError, OwnRandomness
from executor.workload import Task
from profiles.errors import GantryError


@contextmanager
def blamed(where: str) -> Iterator[None]:
    """Turn whatever the user's code raises into a WorkloadError that begins with `where`."""
    try:
        yield
    except torch.OutOfMemoryError:  # not the layer's fault; a smaller microbatch may do
        raise
    except (GantryError, DrawError) as error:
        raise WorkloadError(f"{where}: {error}") from error
    except Exception as error:
        raise WorkloadError(f"{where}: {one_line(error)}") from error


def layer_place(task: Task, index: int, layer: nn.Module) -> str:
    """How errors name a layer: `task gpt: layer 3 (Block)`."""
    return f"task {task.name}: layer {index} ({type(layer).__name__})"


def batch(task: Task) -> tuple[Tensor, Tensor]:
    """The task's first batch, inputs and targets, batch first; WorkloadError if it is none."""
    place = f"task {task.name}: data(0)"
    with blamed(place), OwnRandomness():
        pair = task.data(0)
    if not isinstance(pair, tuple | list) or not all(isinstance(t, Tensor) for t in pair):
        raise WorkloadError(f"{place} returned {type(pair).__name__}, not (inputs, targets)")
    if len(pair) != 2 or any(t.dim() == 0 or len(t) == 0 for t in pair):
        raise WorkloadError(f"{place} must return two tensors, batch first and not empty")
    inputs, targets = pair
    if len(inputs) != len(targets):
        raise WorkloadError(f"{place} returned {len(inputs)} inputs but {len(targets)} targets")
    return inputs, targets


def check_chain(
    task: Task, layers: Sequence[nn.Module], inputs: Tensor, targets: Tensor, device: Device
) -> None:
    """Run one batch through all layers and the loss; WorkloadError names the first bad one."""
    x, last = inputs.to(device.where), len(layers) - 1
    for index, layer in enumerate(layers):
        with blamed(layer_place(task, index, layer)):
            shard = on_device(Case(task, layer, x, None, first=index == 0), device)
            x = checked_output(shard, device, x)
            if index < last and not x.is_floating_point():
                raise WorkloadError(f"gives {x.dtype}; boundaries between layers must be floating")
    with blamed(f"task {task.name}: loss"), computing(task.precision, device.where):
        loss = task.loss(x.requires_grad_(x.is_floating_point()), targets.to(device.where))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise WorkloadError(
                f"must return a scalar tensor, the mean over the batch; got {found}"
            )
        if not loss.requires_grad:
            raise WorkloadError("has no gradient with respect to the outputs; nothing could learn")
