"""The part that the lead and the others have in common: signals and wires."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from executor.distributed.links import GroupWire, Mesh, Pair
from executor.distributed.signals import Board, Counter, Letter
from executor.errors import RunError
from executor.replay import Signal, Stopped, Tag, Wire
from plans.part import Part

T = TypeVar("T")

_NEWS_S = 1.0  # until a process that is gone is known to be


@dataclass(frozen=True)
class _Guarded:
    """A wire that stops where it fails because a process is gone: that ends the run."""

    wire: GroupWire
    mesh: Mesh

    @property
    def early(self) -> bool:
        return self.wire.early

    def send(self, source: Tensor, segment: int) -> None:
        self._guard(partial(self.wire.send, source, segment))

    def receive(self, target: Tensor, segment: int) -> Callable[[], object]:
        return partial(self._guard, self._guard(partial(self.wire.receive, target, segment)))

    def _guard(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except RunError:
            if self.mesh.loss(_NEWS_S):
                raise Stopped from None
            raise


class Peers:
    """The processes of a run, for the one that has this part of the plan. letters: the group for
    signals between nodes, where there are several."""

    def __init__(
        self,
        part: Part,
        mesh: Mesh,
        wires: Mapping[Pair, GroupWire],
        board: Board,
        letters: dist.ProcessGroup | None,
    ) -> None:
        self.me, self.mesh = part.me, mesh
        self._part, self._wires, self._board, self._letters = part, wires, board, letters

    def signal(self, segment: int, number: int, other: int, room: int | None) -> Signal:
        """A signal of a segment, which process `other` tells or waits for."""
        place, nodes = self._board.place(segment, number), self._part.nodes
        if nodes[other] != nodes[self.me]:
            assert self._letters, "there are several nodes"
            return Letter(self._letters, other, place)
        return Counter(self._board, place, None if room is None else self._board.room(room))

    def tag(self, buffer: str) -> Tag:
        """The facts about a buffer of the host store."""
        return self._board.tag(buffer)

    def wire(self, source: int, target: int) -> Wire:
        """The wire from one device to another."""
        return _Guarded(self._wires[source, target], self.mesh)
