"""What a loss leaves out of its mean: the targets of a cross-entropy that do not count."""

import inspect
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from executor.numerics import mapped
from executor.profiling.parts.probe import Probe
from executor.workload import Batch, counting, part
from profiles.schema import Counts


class _Losses(TorchFunctionMode):
    """Notes each cross-entropy that is computed while active: the number of its targets that count,
    and the target that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (F.cross_entropy, F.nll_loss):
            given = inspect.signature(func).bind(*args, **kwargs or {})
            given.apply_defaults()
            target, ignored = given.arguments["target"], given.arguments["ignore_index"]
            if not target.is_floating_point():
                self.found.append((int((target != ignored).sum()), ignored))
        return func(*args, **kwargs or {})


def counts_of(probe: Probe, batch: Batch) -> Counts | None:
    """The tensor of a batch whose values say what counts in its loss: a cross-entropy has as many
    targets less as values of it are changed to the one that is left out. Whether some are left out
    in these batches does not matter."""
    few = part(batch, 0, 2)
    known = {ignored for _, ignored in _losses(probe, few)}
    for number, tensor in enumerate(few.tensors):
        if tensor.is_floating_point() or not tensor.dtype.is_signed:
            continue
        for ignored in known:
            changed = masked(few, number, ignored)
            before = _losses(probe, masked(few, number, ignored, none=True))
            found = {*_losses(probe, changed)}.difference(before)
            for shifted in (False, True)[: tensor.dim()]:
                counts = Counts(number, shifted, ignored)
                if (int(counting(counts)(changed)), ignored) in found:
                    return counts
    return None


def _losses(probe: Probe, batch: Batch) -> list[tuple[int, int]]:
    """The cross-entropies of a batch; none where the model cannot be run with it."""
    losses = _Losses()
    try:
        with probe.alone(), torch.no_grad(), losses:
            probe.loss(batch)
    except Exception:  # a value that is no token, say
        return []
    return losses.found


def masked(batch: Batch, number: int, ignored: int, *, none: bool = False) -> Batch:
    """The batch with half of the first sample's targets left out, and no others; or with none."""
    numbers = count()

    def change(tensor: Tensor) -> Tensor:
        if next(numbers) != number:
            return tensor
        made = tensor.masked_fill(tensor == ignored, 0)
        if not none:
            row = made[:1].reshape(-1)
            made[:1] = torch.where(torch.arange(len(row)) * 2 <= len(row), ignored, row).view_as(
                made[:1]
            )
        return made

    return Batch(*(mapped(change, value) for value in batch))
