"""What the forwards and backwards of a shard leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from executor.numerics import Grads, Layout, Packing, Snapshot, Value
from executor.shards.parameters import NONE, Absent


class Made(NamedTuple):
    """What a forward left: how the boundary lies in its buffer, and with what values of changing
    buffers it began; None when it cannot be run again."""

    layout: Layout
    before: Snapshot | None


class Done(NamedTuple):
    """What a backward made: the loss (last shard), how dx lies in its buffer, the parameters that
    have no gradient after it, and those of a tie."""

    loss: Tensor | None
    dx: Grads
    absent: Absent
    tie: Absent = NONE


@dataclass(frozen=True, eq=False)
class Graph:
    """What a forward left for its backward, which can be run once.

    `leaves` are the input's tensors as autograd knows them, `ends` where backward begins, by the
    number of the boundary's tensor, or the loss. With `packing` the graph holds no memory, and
    parameters and input may lie elsewhere later; without, both must be where they were.
    """

    leaves: Sequence[Tensor]
    ends: Mapping[int, GradientEdge] | Tensor | None
    loss: Tensor | None
    packing: Packing | None

    def grads(self) -> dict[int, Tensor]:
        """After the backward: the gradients of the input's tensors that have some."""
        found = enumerate(leaf.grad for leaf in self.leaves)
        return {n: grad for n, grad in found if grad is not None}

    def move(self, param: Tensor, x: Value, saved: Tensor, tied: Tensor | None) -> None:
        """Let a packed graph go on with a shard's flat, `x` and `saved` (uint8)."""
        if self.packing is not None:
            self.packing.move(param, x.tensors, saved, tied)
            for leaf, tensor in zip(self.leaves, x.tensors, strict=True):
                leaf.data = tensor.data


def edges(y: Value) -> dict[int, GradientEdge]:
    """From the edges, not from y, so that y can go as soon as no saved tensor needs it."""
    return {n: get_gradient_edge(t) for n, t in enumerate(y.tensors) if t.requires_grad}
