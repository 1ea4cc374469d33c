"""What a layer must be so that it can be cut, moved and run again: refusals before measuring."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError, one_line
from executor.rng import DrawError, OwnRandomness
from executor.workload import Task
from profiles.errors import GantryError


@contextmanager
def blamed(where: str) -> Iterator[None]:
    """Turn whatever the user's code raises into a WorkloadError that begins with `where`."""
    try:
        yield
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


def check_chain(task: Task, layers: Sequence[nn.Module], inputs: Tensor, targets: Tensor) -> None:
    """Run one batch through all layers and the loss; WorkloadError names the first bad one."""
    x = inputs
    for index, layer in enumerate(layers):
        place = layer_place(task, index, layer)
        with blamed(place):
            x = _checked_output(layer, x)
            if index < len(layers) - 1 and not x.is_floating_point():
                raise WorkloadError(f"gives {x.dtype}; boundaries between layers must be floating")
    with blamed(f"task {task.name}: loss"):
        loss = task.loss(x.requires_grad_(x.is_floating_point()), targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise WorkloadError(
                f"must return a scalar tensor, the mean over the batch; got {found}"
            )
        if not loss.requires_grad:
            raise WorkloadError("has no gradient with respect to the outputs; nothing could learn")


def _checked_output(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, after a recomputation that changed nothing."""
    state = torch.default_generator.get_state()
    first = output(layer, x.clone())
    buffers = {name: value.clone() for name, value in layer.named_buffers()}
    torch.default_generator.set_state(state)
    again = x.clone()
    second = output(layer, again)
    if not _same(again, x):
        raise WorkloadError("changes its input in place; use inplace=False")
    for name, value in layer.named_buffers():
        if name not in buffers or not _same(value, buffers[name]):
            raise WorkloadError(
                f"changes its buffer {name} in a forward, and recomputing would change it twice; "
                "use a layer without running statistics, such as LayerNorm or GroupNorm"
            )
    if not _same(first, second):
        raise WorkloadError(
            "gives another output when it is recomputed with the same random state; "
            "let it draw from torch's default generator only"
        )
    return first


def output(layer: nn.Module, x: Tensor) -> Tensor:
    """What the layer makes of `x`, without a graph; WorkloadError unless it is one tensor."""
    with torch.no_grad():
        y = layer(x)
    if not isinstance(y, Tensor):
        raise WorkloadError(
            f"returned {type(y).__name__}; between layers there is exactly one tensor"
        )
    return y


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal values, nan being equal to nan."""
    if left.shape != right.shape or not left.is_floating_point():
        return torch.equal(left, right)
    return torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)
