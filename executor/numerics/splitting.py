"""A graph's backward in two parts: the gradients of its input now, those of parameters later.

    grad ─▶ Gelu ─▶ Addmm ─▶ LayerNorm ─▶ Addmm ─▶ x     first part, with LayerNorm's parameters
                      │                     │
                      ▼ T                   ▼ T
                    weight, bias          weight, bias   second part

The first part is autograd's own run, from which the edges of matrix products and convolutions to
their parameters are left out; the gradients that come to these nodes are kept. The second part
calls the nodes with them, for the edges that were left out. In between the graph keeps what these
nodes need (`Pieces`), and no more.

Bits stay those of one run. The nodes of the first part lead to each other in the same order, since
all that leads to one of them is among them. A node that is called twice computes each of its
gradients by itself (`_SPLITS`). The terms of a sum in the second part come straight from such
nodes, in their order, or are two, whose order does not matter. Where that does not hold, a
parameter's gradient is computed in the first part and kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from executor.numerics.gradients import Beginning

_SPLITS = frozenset(
    f"{name}Backward0" for name in ("Addmm", "Mm", "Baddbmm", "Bmm", "Convolution")
)  # nodes of which each gradient is computed by itself
_PASSES = frozenset(
    f"{name}Backward0"
    for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Expand", "ToCopy")
)  # nodes of one gradient that make a parameter what the others take

Root = tuple[Tensor | GradientEdge, Tensor | None]  # where a backward begins, with what


class Later(NamedTuple):
    """The second part of a backward.

    now: parameters whose gradients are there already. nodes: those to be called, in the order in
    which they ran, with the gradients that came to them. edges: the numbers of their edges left
    out. uses: how many gradients come to each node behind these.
    """

    now: list[tuple[Tensor, Tensor]]
    nodes: list[tuple[Node, tuple[Tensor | None, ...]]]
    edges: Mapping[Node, Sequence[int]]
    uses: Mapping[Node, int]

    @property
    def grad_bytes(self) -> int:
        """The bytes of all gradients that wait for it."""
        came = (grad for _, grads in self.nodes for grad in grads if grad is not None)
        storages = (grad.untyped_storage() for grad in (*came, *(grad for _, grad in self.now)))
        return sum({one._cdata: one.nbytes() for one in storages}.values())


class _Graph(NamedTuple):
    """The nodes of a graph with their edges, each before all that lead to it. `users`: the nodes
    that lead to it, once for each edge."""

    edges: dict[Node, tuple[tuple[Node | None, int], ...]]
    users: dict[Node, list[Node]]


def input_gradients(
    roots: Sequence[Root],
    wanted: Sequence[Tensor],
    parameters: Iterable[Tensor],
    *,
    lent: Iterable[Tensor] = (),
    whole: bool = False,
) -> tuple[list[Tensor | None], Later]:
    """The first part: the gradients of the `wanted` tensors, and what is left to do for those of
    the `parameters`. None of what is left lies in memory of the `lent` tensors.

    `whole`: nothing is left out. A wanted parameter's gradient is no part of what is left.
    """
    ends = [end if isinstance(end, GradientEdge) else get_gradient_edge(end) for end, _ in roots]
    targets = [get_gradient_edge(tensor) for tensor in wanted]
    reached = {edge.node for edge in targets}
    graph = _walk((end.node for end in ends), reached)
    late = set[Node]() if whole else _late(graph, reached, {e.node for e in ends}, parameters)
    leaves = [n for n in graph.edges if not graph.edges[n] and n not in late | reached]
    later = Later([], [], _left_out(graph, late), {n: len(graph.users[n]) for n in late})
    keep = _Keeper(lent, all_copied=any(map(_foreign, graph.edges)))
    handles = [node.register_prehook(keep.noting(later, node)) for node in later.edges]
    inputs = [*targets, *(GradientEdge(node, 0) for node in leaves)]
    try:
        found = _run(ends, [grad for _, grad in roots], inputs, keep_graph=bool(handles))
    finally:
        for handle in handles:  # a node that holds what holds the node would never be freed
            handle.remove()
    own = set(map(id, parameters))
    for node, grad in zip(leaves, found[len(targets) :], strict=True):
        parameter = _leaf(node)
        if grad is not None and parameter is not None and id(parameter) in own:
            later.now.append((parameter, keep.apart(grad)))
    return found[: len(targets)], later


def parameter_gradients(later: Later, give: Callable[[Tensor, Tensor], None]) -> None:
    """The second part, once: `give` gets each parameter that has a gradient, with all of it."""
    for parameter, grad in later.now:
        give(parameter, grad)
    later.now.clear()
    if later.nodes:
        _masked(later.uses, lambda: _follow(later, give))


def _follow(later: Later, give: Callable[[Tensor, Tensor], None]) -> None:
    missing, sums = dict(later.uses), dict[Node, Tensor]()

    def add(node: Node | None, grad: Tensor | None) -> None:
        assert node is not None, "only edges that lead somewhere are left out"
        if grad is not None:
            grad = _fitting(grad, node)
            sums[node] = sums[node] + grad if node in sums else grad
        missing[node] -= 1
        if missing[node]:
            return
        total = sums.pop(node, None)
        if (parameter := _leaf(node)) is None:
            add(node.next_functions[0][0], _call(node, (total,))[0])
        elif total is not None:
            give(parameter, total)

    later.nodes.reverse()
    while later.nodes:
        node, came = later.nodes.pop()
        made = _call(node, came)
        for number in later.edges[node]:
            if made[number] is None and any(grad is not None for grad in came):
                raise RuntimeError(f"{node.name()} gives no gradient number {number}")
            add(node.next_functions[number][0], made[number])


def _call(node: Node, came: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    made = node(*came)  # type: ignore[operator]
    return made if isinstance(made, tuple) else (made,)


def _fitting(grad: Tensor, node: Node) -> Tensor:
    """The gradient as autograd hands it to a node: of the shape and type of what it is for."""
    (what,) = node._input_metadata
    grad = grad if grad.shape == what.shape else grad.sum_to_size(what.shape)
    return grad if grad.dtype == what.dtype else grad.to(what.dtype)


# --- the first part ---------------------------------------------------------------------------


def _walk(starts: Iterable[Node], targets: set[Node]) -> _Graph:
    """The graph from `starts` as far as the targets."""
    edges: dict[Node, tuple[tuple[Node | None, int], ...]] = {}
    users: dict[Node, list[Node]] = {}
    for start in starts:
        users.setdefault(start, [])
        stack: list[tuple[Node, bool]] = [(start, False)]
        while stack:
            node, done = stack.pop()
            if done:
                edges[node] = edges.pop(node)  # behind all that it leads to
                continue
            if node in edges:
                continue
            edges[node] = () if node in targets else node.next_functions
            stack.append((node, True))
            for after, _ in edges[node]:
                if after is not None:
                    users.setdefault(after, []).append(node)
                    stack.append((after, False))
    return _Graph(edges, users)


def _late(
    graph: _Graph, targets: set[Node], ends: set[Node], parameters: Iterable[Tensor]
) -> set[Node]:
    """The nodes that can be left to the second part."""
    first = set[Node]()
    for node, edges in graph.edges.items():
        if node in targets or any(after in first for after, _ in edges):
            first.add(node)
    late = set(graph.edges) - first
    own = set(map(id, parameters))
    wrong = [n for n in late if n in ends or not _simple(graph, n, first, own)]
    while wrong:  # with each, all that it shares a node with
        node = wrong.pop()
        if node in late:
            late.remove(node)
            wrong += (n for n in _beside(graph, node, first) if n in late)
    return late


def _simple(graph: _Graph, node: Node, first: set[Node], own: set[int]) -> bool:
    edges, users = graph.edges[node], graph.users[node]
    known = id(_leaf(node)) in own or (node.name() in _PASSES and len(edges) == 1)
    ordered = len(users) <= 2 or all(user in first for user in users)
    return known and ordered and all(u not in first or u.name() in _SPLITS for u in users)


def _beside(graph: _Graph, node: Node, first: set[Node]) -> Iterator[Node]:
    """The nodes that must be where `node` is."""
    for user in graph.users[node]:
        if user in first:
            yield from (after for after, _ in graph.edges[user] if after is not None)
        else:
            yield user
    yield from (after for after, _ in graph.edges[node] if after is not None)


def _left_out(graph: _Graph, late: set[Node]) -> dict[Node, list[int]]:
    """The nodes of the first part with edges to the second."""
    users = {user for node in late for user in graph.users[node]} - late
    return {u: [k for k, (n, _) in enumerate(graph.edges[u]) if n in late] for u in users}


def _leaf(node: Node) -> Tensor | None:
    """The tensor whose gradients a node gathers, if it does."""
    leaf = type(node).__name__ == "AccumulateGrad"
    return node.variable if leaf else None  # type: ignore[attr-defined]


def _foreign(node: object) -> bool:
    """True for a function of somebody's own, which might change the gradients it is given."""
    known = f"{Beginning.__name__}Backward", "BackwardHookFunctionBackward"  # torch's, for hooks
    return isinstance(node, BackwardCFunction) and type(node).__name__ not in known


class _Keeper:
    """Keeps gradients that others may change, or that lie in memory that is `lent`."""

    def __init__(self, lent: Iterable[Tensor], *, all_copied: bool) -> None:
        self._lent = {tensor.untyped_storage().data_ptr() for tensor in lent}
        self._all = all_copied

    def apart(self, grad: Tensor) -> Tensor:
        """The gradient, in memory that nobody else changes."""
        strided = grad.layout == torch.strided
        lent = strided and grad.untyped_storage().data_ptr() in self._lent
        return grad.clone() if lent or self._all else grad

    def noting(self, later: Later, node: Node) -> Callable[[tuple[Tensor | None, ...]], None]:
        """A hook that notes what comes to a node."""

        def note(came: tuple[Tensor | None, ...]) -> None:
            kept = tuple(grad if grad is None else self.apart(grad) for grad in came)
            later.nodes.append((node, kept))

        return note


def _run(
    ends: Sequence[GradientEdge],
    grads: Sequence[Tensor | None],
    inputs: Sequence[GradientEdge],
    *,
    keep_graph: bool,
) -> list[Tensor | None]:
    if not inputs or not ends:
        return [None] * len(inputs)
    found = torch.autograd.grad(ends, inputs, grads, retain_graph=keep_graph, allow_unused=True)
    return list(found)


# --- the second part --------------------------------------------------------------------------


class _Within(torch.autograd.Function):
    """Runs `work` as a part of a backward."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, work: Callable[[], None]) -> Tensor:
        ctx.work = work
        return leaf.data

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:
        ctx.work()
        return None, None


def _masked(nodes: Iterable[Node], work: Callable[[], None]) -> None:
    """Do the work in a backward that wants the gradients of these nodes alone: nodes that are
    called in it compute nothing for others."""
    leaf = nn.Parameter(torch.zeros(()))
    edges = [get_gradient_edge(leaf), *(GradientEdge(node, 0) for node in nodes)]
    with torch.enable_grad():
        root = _Within.apply(leaf, work)  # type: ignore[no-untyped-call]
    torch.autograd.grad([root], edges, allow_unused=True)
