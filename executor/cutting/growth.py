"""Sizes of a recorded run's tensors: which of them grow with the batch."""

from collections.abc import Mapping

from torch import Tensor

from executor.cutting.flow import Key
from executor.cutting.parts import Dims, OneSize
from executor.cutting.record import Call, Leaf, Record

Noted = tuple[tuple[str, tuple[int, ...]], ...]


class Growth:
    """A dimension grows if it is the first and as large as the batch, but for tensors in `noted`,
    which has theirs by the tensor's key; nothing grows where that is None."""

    def __init__(self, samples: int, noted: Noted | None) -> None:
        self.samples = samples
        self.any_size = noted is not None
        self._noted = dict(noted or ())

    def dims(self, key: Key, tensor: Tensor) -> Dims:
        """The tensor's sizes, of one sample where they grow."""
        return _dims(tensor, self._noted.get(str(key), self._usual(tensor)), self.samples)

    def _usual(self, tensor: Tensor) -> tuple[int, ...]:
        first = tensor.dim() > 0 and len(tensor) == self.samples
        return (0,) if self.any_size and first else ()


class Compared(Growth):
    """As a second run with fewer samples shows it; `twins`: its calls by the numbers of those in
    the first."""

    def __init__(
        self, large: Record, small: Record, twins: Mapping[int, Call], samples: tuple[int, int]
    ) -> None:
        many, self._few = samples
        super().__init__(many, () if self._few < many else None)
        self._large, self._small, self._twins = large, small, twins

    def dims(self, key: Key, tensor: Tensor) -> Dims:
        """OneSize for sizes that do not grow in proportion to the batch."""
        if not self.any_size:
            return super().dims(key, tensor)
        other = self._twin(key).value
        if tensor.dim() != other.dim():
            raise OneSize("a tensor has other dimensions for another batch size")
        pairs = list(zip(tensor.shape, other.shape, strict=True))
        if any(not self._in_proportion(a, b) for a, b in pairs if a != b):
            raise OneSize("a tensor's size is not in proportion to the batch")
        grows = tuple(dim for dim, (a, b) in enumerate(pairs) if a != b)
        if grows != self._usual(tensor):
            self._noted[str(key)] = grows
        return _dims(tensor, grows, self.samples)

    @property
    def noted(self) -> Noted | None:
        """All that a later run needs beside its own tensors."""
        return tuple(sorted(self._noted.items())) if self.any_size else None

    def _in_proportion(self, size: int, other: int) -> bool:
        each, rest = divmod(size, self.samples)
        return rest == 0 and each * self._few == other

    def _twin(self, key: Key) -> Leaf:
        """The tensor as it was with fewer samples."""
        if key.kind == "input":
            return self._small.inputs[key.leaf]
        call = self._twins.get(key.number)
        if call is None:
            module = self._large.calls[key.number].module
            same = [call for call in self._small.calls if call.module is module]
            if len(same) != 1:
                raise OneSize("it calls its modules otherwise for another batch size")
            (call,) = same
        return (call.made if key.kind == "made" else call.given)[key.leaf]


def _dims(tensor: Tensor, grows: tuple[int, ...], samples: int) -> Dims:
    return tuple(
        (int(size) // samples, True) if dim in grows else (int(size), False)
        for dim, size in enumerate(tensor.shape)
    )
