"""The layouts of values in buffers that hold another one in each microbatch."""

from torch import Tensor

from executor.numerics.values import Layout

Layouts = tuple[Layout, ...]  # of values one after another


class Contents:
    """The layouts of values in buffers (uint8), by the buffer's address: noted by whoever writes a
    value, so that those who read it need not know which microbatch it is of."""

    def __init__(self) -> None:
        self._known: dict[int, Layouts] = {}

    def note(self, flat: Tensor, layouts: Layouts) -> None:
        """Values were written there, one after another."""
        self._known[flat.data_ptr()] = layouts

    def of(self, flat: Tensor) -> Layouts:
        """The layouts of what was written there last."""
        return self._known[flat.data_ptr()]

    def carry(self, source: Tensor, target: Tensor) -> int:
        """Values are copied from one place to the other; their bytes."""
        self.note(target, layouts := self.of(source))
        return sum(layout.bytes for layout in layouts)
