"""What is known of microbatches beside their bytes: how values lie there, and their share of a
loss."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from executor.errors import RunError
from executor.numerics import Layout

Layouts = tuple[Layout, ...]  # of values one after another
Weigh = Callable[[Any], Any]  # gives the number that a batch counts

_ROUNDING = 1e-9  # of a sum of weights that are no whole numbers


class Share(NamedTuple):
    """A microbatch's share of the loss of its batch. divisor: of its own loss; inf where nothing of
    it counts. total: what the whole batch counts among those of an evaluation."""

    divisor: float
    total: float = 1.0


class Content(NamedTuple):
    """The layouts of values one after another, and the share of the microbatch they are of."""

    layouts: Layouts
    share: Share = Share(1.0)


class Contents:
    """The values in buffers (uint8), by the buffer's address: noted by whoever writes one, so that
    those who read it need not know which microbatch it is of."""

    def __init__(self) -> None:
        self._known: dict[int, Content] = {}

    def note(self, flat: Tensor, content: Content) -> None:
        """This was written there."""
        self._known[flat.data_ptr()] = content

    def of(self, flat: Tensor) -> Content:
        """The content that was written there last."""
        return self._known[flat.data_ptr()]

    def carry(self, source: Tensor, target: Tensor) -> int:
        """Values are copied from one place to the other; their bytes."""
        self.note(target, content := self.of(source))
        return sum(layout.bytes for layout in content.layouts)


def shares(given: Weigh | None, batch: Any, parts: Sequence[Any]) -> list[Share]:
    """The share of each of its parts in the loss of a batch; equal ones without weights. RunError
    where the weights of the parts are not that of the batch, or all 0."""
    if given is None:
        return [Share(len(parts))] * len(parts)
    weights = [weigh(given, one) for one in parts]
    total, whole = math.fsum(weights), weigh(given, batch)
    if not math.isclose(total, whole, rel_tol=_ROUNDING):
        raise RunError(
            f"weight gave {whole:.10g} of the batch and {total:.10g} of its {len(parts)} "
            "microbatches together; it must be a sum over the samples"
        )
    if not total:
        raise RunError(
            "the weight of the whole batch is 0, so nothing in it has a loss; leave it out"
        )
    return [Share(total / one if one else math.inf, total) for one in weights]


def weigh(given: Weigh, batch: Any) -> float:
    """The weight of a batch by the function. RunError where that is no number from 0 on."""
    found = given(batch)
    number = found.item() if isinstance(found, Tensor) and found.numel() == 1 else found
    if not isinstance(number, int | float) or not 0 <= number < math.inf:
        shown = number if isinstance(number, int | float) else type(number).__name__
        raise RunError(f"weight gave {shown}; it must be a number from 0 on, what a batch counts")
    return float(number)
