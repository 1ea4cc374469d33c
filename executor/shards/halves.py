"""A shard's backward in two parts: gradients of the input first, those of parameters later."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from executor.numerics import give, input_gradients, parameter_gradients, write_grads
from executor.shards.graphs import Done, Graph
from executor.shards.parameters import NONE, Absent
from executor.shards.shard import Shard
from executor.shards.tied import Tie


def backward_input(
    shard: Shard,
    graph: Graph,
    *,
    dy: Mapping[int, Tensor] | None = None,
    dx: Tensor | None = None,
    tie: Tie | None = None,
) -> tuple[Done, Graph]:
    """The first part of `Shard.backward`: the gradients of the input, and of parameters that
    shards below use as well. With the graph that the second part goes on with."""
    roots = shard.roots(graph, dy or {}, tie)
    begun = {n: t for n, t in enumerate(graph.x.tensors) if graph.x.layout.needs[n]}
    tied = shard.tied if tie else None
    shared = list(tied.summed.values()) if tied and tie and tie.handed is not None else []
    found, later = input_gradients(
        roots,
        [*begun.values(), *shared],
        shard.parameters.trainable,
        lent=[grad for _, grad in roots if grad is not None],
        whole=_hooked(shard.layers),
    )
    for parameter, grad in zip(shared, found[len(begun) :], strict=True):
        if grad is not None:
            give(parameter, grad)
    grads = {n: grad for n, grad in zip(begun, found, strict=False) if grad is not None}
    written = write_grads(dx, grads) if dx is not None else ()
    left = tied.absent(tie) if tied and tie else NONE
    if graph.pieces:
        graph.pieces.free(node for node, _ in later.nodes)
    rest = graph._replace(ends=None, pieces=None, later=later)
    return Done(graph.loss, written, NONE, left), rest


def backward_weights(
    shard: Shard, graph: Graph, grads: Tensor, *, absent: Absent | None = None
) -> Absent:
    """The second part, once: gradients of parameters go to `grads` (uint8, grad_bytes), added to
    those that are there but for the `absent` ones; None: these are overwritten. The parameters
    that have none after it."""
    assert graph.later is not None, "the first part leaves it"
    shard.parameters.expect_grads(grads, absent)
    parameter_gradients(graph.later, give)
    return shard.parameters.absent()


def _hooked(layers: Sequence[nn.Module]) -> bool:
    """True if a hook of torch's old kind may change what a node makes of gradients."""
    return any(module._is_full_backward_hook is False for x in layers for module in x.modules())
