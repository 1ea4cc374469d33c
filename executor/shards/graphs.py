"""The results of a shard's forwards and backwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from executor.numerics import Grads, Layout, Packing, Snapshot, Value
from executor.shards.parameters import NONE, Absent


class Made(NamedTuple):
    """A forward's result: the layout of the boundary in its buffer, and the values of changing
    buffers that it began with; None when it cannot be run again."""

    layout: Layout
    before: Snapshot | None


class Done(NamedTuple):
    """A backward's result: the loss (last shard), the layout of dx in its buffer, the parameters
    that have no gradient after it, and those of a tie."""

    loss: Tensor | None
    dx: Grads
    absent: Absent
    tie: Absent = NONE


@dataclass(frozen=True, eq=False)
class Graph:
    """A forward's autograd graph, which a backward can use once.

    `leaves` are the input's tensors as autograd knows them; backward begins at `ends`, the edges by
    the number of the boundary's tensor, or the loss. With `packing` the graph holds no memory, and
    parameters and input may lie elsewhere later; without, both must be where they were.
    """

    leaves: Sequence[Tensor]
    ends: Mapping[int, GradientEdge] | Tensor | None
    loss: Tensor | None
    packing: Packing | None

    _given: dict[int, Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Note gradients as they come: `grad` would give them the strides of their tensor, and
        kernels further down go by strides."""
        for number, leaf in enumerate(self.leaves):
            if leaf.requires_grad:
                note = partial(self._given.__setitem__, number)
                leaf.register_hook(note)  # type: ignore[no-untyped-call]

    def grads(self) -> dict[int, Tensor]:
        """After the backward: the gradients of the input's tensors that have some."""
        return self._given


def edges(y: Value) -> dict[int, GradientEdge]:
    """Where a backward through `y` begins: edges hold no memory, so y is freed when unused."""
    return {n: get_gradient_edge(t) for n, t in enumerate(y.tensors) if t.requires_grad}
