"""The precision a task computes in, and what has to be known of all gradients before any update.

    fp32            as the model was built
    bf16-autocast   torch.autocast around layers and loss
    fp16-autocast   the same, with the loss scaled up by as much as the gradients can bear
    bf16            parameters and gradients in bf16, updates on fp32 copies of the parameters
                    (masters) that belong to the optimizer's state

The norms of a task lie in one buffer of doubles: those of all trainable parameters in the order
of the model, then by what gradients are multiplied, then whether this step is left out.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from profiles.codec import align
from profiles.schema import Precision

AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}

_ITEM = 8  # bytes of a double, which holds an fp32 norm exactly
_FIRST_SCALE, _GROWTH, _BACKOFF, _INTERVAL = 65536.0, 2.0, 0.5, 2000  # torch.amp.GradScaler's


def computing(precision: Precision, where: torch.device) -> AbstractContextManager[object]:
    """The context in which layers and loss run on a device."""
    dtype = AUTOCAST.get(precision)
    return torch.autocast(where.type, dtype=dtype) if dtype else nullcontext()


def needs_norms(precision: Precision, clip: float | None) -> bool:
    """True if updates wait for the norms of all gradients."""
    return clip is not None or precision == "fp16-autocast"


def norm_bytes(parameters: int) -> int:
    """Bytes of the norm buffer of a task with so many trainable parameters."""
    return align(_ITEM * (parameters + 2))


def norms_of(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each gradient as torch.nn.utils.clip_grad_norm_ has it (of bf16 in fp32)."""
    if not gradients:
        return torch.empty(0)
    low = gradients[0].dtype in (torch.bfloat16, torch.float16)
    norms = torch._foreach_norm(list(gradients), 2, torch.float32 if low else None)
    return torch.stack(norms)


class LossScale:
    """The scale of an fp16 task's loss, as torch.amp.GradScaler moves it; stays on its device."""

    def __init__(self, saved: Mapping[str, Tensor] | None = None) -> None:
        self.scale = torch.full((1,), _FIRST_SCALE)
        self._growth = torch.zeros(1, dtype=torch.int32)
        if saved:
            self.scale, self._growth = saved["scale"].clone(), saved["growth"].clone()

    def state(self) -> dict[str, Tensor]:
        """The state from which another one goes on."""
        return {"scale": self.scale.cpu(), "growth": self._growth.cpu()}

    def at(self, where: torch.device) -> Tensor:
        """The scale on a device, which need not be where it is kept."""
        return self.scale.to(where)

    def to(self, where: torch.device) -> "LossScale":
        """Kept on another device from now on: where the norms are complete."""
        if self.scale.device != where:
            self.scale, self._growth = self.scale.to(where), self._growth.to(where)
        return self

    def update(self, left_out: Tensor) -> None:
        """Another step is over; `left_out` (one float) is 1 when gradients were not finite."""
        torch._amp_update_scale_(self.scale, self._growth, left_out, _GROWTH, _BACKOFF, _INTERVAL)


@lru_cache(maxsize=1024)
def _index(numbers: tuple[int, ...], where: torch.device) -> Tensor:
    """These numbers on a device, sent once: who sends them waits for all that the device does."""
    return torch.tensor(numbers, dtype=torch.int64, device=where)


class Norms:
    """The norm buffer (uint8) as tensors."""

    def __init__(self, flat: Tensor, parameters: int) -> None:
        values = flat[: _ITEM * (parameters + 2)].view(torch.float64)
        self.each, self.factor, self.left_out = values[:-2], values[-2], values[-1]

    def note(self, numbers: Sequence[int], norms: Tensor) -> None:
        """The norms of a shard's trainable parameters of these numbers."""
        if len(numbers) and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
            self.each[numbers[0] : numbers[-1] + 1].copy_(norms)
        elif len(numbers):
            self.each[_index(tuple(numbers), self.each.device)] = norms.to(self.each.dtype)

    def close(
        self,
        numbers: Sequence[int],
        dtype: torch.dtype,
        clip: float | None,
        scale: LossScale | None,
    ) -> None:
        """The norms of the parameters of these numbers are there, others have no gradient: by what
        gradients are multiplied, as clip_grad_norm_ would, on gradients unscaled as GradScaler
        would. Norms and total are of `dtype`."""
        norms = self.each.to(dtype)
        if len(numbers) < len(norms):
            norms = norms[_index(tuple(numbers), norms.device)]
        factor = torch.ones((), dtype=dtype, device=norms.device)
        self.left_out.zero_()
        if scale is not None:
            inverse = scale.scale.double().reciprocal().to(dtype).squeeze()
            left_out = 1 - torch.isfinite(norms.sum()).float()
            self.left_out.copy_(left_out)
            scale.update(left_out.reshape(1))
            norms, factor = norms * inverse, inverse
        if clip is not None:
            total = torch.linalg.vector_norm(norms, 2)
            factor = factor * torch.clamp(clip / (total + 1e-6), max=1.0)
        self.factor.copy_(factor)
