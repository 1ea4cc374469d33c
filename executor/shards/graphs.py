"""The results of a shard's forwards and backwards."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from executor.numerics import Grads, Later, Packing, Pieces, Value
from executor.shards.parameters import NONE, Absent


class Done(NamedTuple):
    """A backward's result: the loss (last shard), the layout of dx in its buffer, the parameters
    that have no gradient after it, and those of a tie."""

    loss: Tensor | None
    dx: Grads
    absent: Absent
    tie: Absent = NONE


class Graph(NamedTuple):
    """A forward's autograd graph, which a backward can use once, in two parts or whole.

    `x` is the input as the graph knows it, and `grads` are, after the backward, the gradients of
    its tensors that have some. Backward begins at `ends`, the edges by the number of the boundary's
    tensor, or the loss. With `packing` the graph holds no memory, and parameters and input may lie
    elsewhere later; without, both must be where they were. With `pieces` its memory can be freed
    in parts. `later`: behind the first part of a backward, the second.
    """

    x: Value
    grads: Mapping[int, Tensor]
    ends: Mapping[int, GradientEdge] | Tensor | None
    loss: Tensor | None = None
    packing: Packing | None = None
    pieces: Pieces | None = None
    later: Later | None = None


def edges(y: Value) -> dict[int, GradientEdge]:
    """Where a backward through `y` begins: edges hold no memory, so y is freed when unused."""
    return {n: get_gradient_edge(t) for n, t in enumerate(y.tensors) if t.requires_grad}
