"""The random numbers of a batch, given again to parts of it."""

from typing import Any

import torch
from torch import Tensor

from executor.numerics.dispatch_mode import OpMode, may_draw
from executor.numerics.rng import DrawError, Source
from executor.numerics.values import tensors_of


class SameDraws(OpMode):
    """While active for a batch of `samples`, notes what its random ops draw; after `take`, the same
    ops of a part of the batch draw what its samples drew there, so that dropout or noise tells no
    part from the whole. DrawError for a draw of which that cannot be said. `source`: the generator
    that they draw from."""

    def __init__(self, samples: int, source: Source) -> None:
        super().__init__()
        self._samples, self._source = samples, source
        self._drawn: list[list[Tensor]] = []
        self._part: tuple[int, int] | None = None  # None: the whole
        self._next = 0

    def take(self, begin: int, count: int) -> None:
        """So many samples from `begin` on are what runs next."""
        self._part, self._next = (begin, count), 0

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not may_draw(func):
            return func(*args, **kwargs)
        before = self._source.get()
        made = func(*args, **kwargs)
        if torch.equal(before, self._source.get()):
            return made
        found = tensors_of(made)
        if self._part is None:
            self._drawn.append([tensor.clone() for tensor in found])
            return made
        if self._next == len(self._drawn) or len(self._drawn[self._next]) != len(found):
            raise DrawError("draws otherwise for a part of a batch than for the whole")
        for tensor, whole in zip(found, self._drawn[self._next], strict=True):
            tensor.copy_(self._own(whole, tensor.shape))
        self._next += 1
        return made

    def _own(self, whole: Tensor, shape: torch.Size) -> Tensor:
        """The part's share of what was drawn for the whole: all of it where it is as large."""
        begin, count = self._part or (0, self._samples)
        if whole.shape == shape:
            return whole
        for dim, size in enumerate(whole.shape):
            each = size // self._samples
            own = whole.narrow(dim, begin * each, count * each)
            if size % self._samples == 0 and own.shape == shape:
                return own
        raise DrawError("draws numbers of no samples")
