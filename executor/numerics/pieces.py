"""A graph's memory for its backward, in pieces of which some can be freed before the others."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache

from torch import Tensor
from torch.autograd.graph import Node

from executor.numerics.gradients import hooked


class Piece:
    """A tensor that a graph keeps. `asked`: somebody wanted to see it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor.detach()  # without a graph that would hold the piece
        self.asked = False

    def show(self) -> Tensor:
        """The tensor, as long as it is there."""
        self.asked = True
        assert self.tensor is not None, "it is needed, or was not freed"
        return self.tensor


class Pieces:
    """The pieces that a graph keeps, some of which can be freed before the rest."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def hooks(self) -> AbstractContextManager[None]:
        """Around the forward that makes the graph; HooksRefused by layers that forbid it."""
        pieces = self._pieces

        def pack(tensor: Tensor) -> Piece:
            pieces.append(Piece(tensor))
            return pieces[-1]

        return hooked(pack, Piece.show)

    def free(self, needed: Iterable[Node]) -> None:
        """Free all but what these nodes need."""
        for piece in self._pieces:
            piece.asked = False
        for node in needed:
            for name in _saved(type(node)):
                getattr(node, name)  # asks for it
        for piece in self._pieces:
            if not piece.asked:
                piece.tensor = None
        self._pieces.clear()


@lru_cache
def _saved(kind: type) -> tuple[str, ...]:
    """The names of what nodes of a kind keep."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))
