"""Segments: consecutive operations of a model's graph as a layer, and the choice of the cuts
between them, in even pieces where little goes across."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from executor.cutting.gap import device_of
from executor.cutting.parts import Fixed, packed, unpacked
from executor.cutting.pieces import hold
from executor.cutting.record import changed, shown

MOST = 64  # layers
_WIDER = 2  # a cut may be so many times as wide as the wider end of the piece it halves
_HEAVY = 1 / 8  # of all weight: a piece so heavy is cut however wide the cut is


@dataclass(frozen=True)
class Code:
    """One operation; nodes among its arguments stand for their values. `where`: it makes tensors on
    a device, which is the one the boundary is on."""

    node: fx.Node
    function: Callable[..., Any]
    args: Any
    kwargs: Mapping[str, Any]
    where: bool
    drops: tuple[fx.Node, ...]  # values that nobody needs after it


@dataclass(frozen=True)
class Listing:
    """The operations of a segment. `given`: values that come with the boundary, or as the batch's
    inputs (None: nobody needs it); `made`: those that are handed on; `end`: the model's output, of
    nodes, in the last segment."""

    codes: tuple[Code, ...]
    given: Sequence[fx.Node | None]
    made: Sequence[fx.Node]
    end: tuple[Any, TreeSpec] | None
    first: bool


class Segment(nn.Module):
    """Consecutive operations of the graph, as a layer."""

    def __init__(
        self,
        label: str,
        listing: Listing,
        held: Mapping[fx.Node, Tensor],
        graphs: Mapping[fx.Node, nn.Module],
    ) -> None:
        """`held`: parameters, buffers and constants; `graphs`: those that operations call."""
        super().__init__()
        self.label = label
        self._listing = Fixed(listing)
        self._names = Fixed(hold(self, held))
        self._called = Fixed(tuple(graphs))
        self._graphs = nn.ModuleList(graphs.values())

    def forward(self, value: Any) -> Any:
        listing = self._listing.value
        leaves = tree_leaves(value) if listing.first else unpacked(value)
        where = device_of(leaves)
        values: dict[Any, Any] = dict(zip(listing.given, leaves, strict=True))
        values |= {node: getattr(self, name) for node, name in self._names.value.items()}
        values |= dict(zip(self._called.value, self._graphs, strict=True))
        for code in listing.codes:
            args, kwargs = map_arg((code.args, code.kwargs), values.__getitem__)
            if code.where:
                kwargs = {**kwargs, "device": where}
            values[code.node] = code.function(*args, **kwargs)
            for node in code.drops:
                del values[node]
        if listing.end is None:
            return packed([values[node] for node in listing.made])
        nodes, tree = listing.end
        return tree_unflatten(map_arg(nodes, values.__getitem__), tree)


def nodes_in(*values: Any) -> list[fx.Node]:
    """All nodes in these, however deep."""
    found: list[fx.Node] = []
    map_arg(values, found.append)
    return found


def dropping(
    order: Sequence[tuple[fx.Node, Any, Any, Any]], kept: set[fx.Node]
) -> tuple[Code, ...]:
    """The operations, each with the values that are not needed after it."""
    last: dict[fx.Node, int] = {}
    for index, (node, _, args, kwargs) in enumerate(order):
        last |= dict.fromkeys((node, *nodes_in(args, kwargs)), index)
    drops: list[list[fx.Node]] = [[] for _ in order]
    for node, index in last.items():
        if node not in kept:
            drops[index].append(node)
    return tuple(
        Code(node, function, args, kwargs, kwargs.get("device") is not None, tuple(dropped))
        for (node, function, args, kwargs), dropped in zip(order, drops, strict=True)
    )


@dataclass(frozen=True)
class Line:
    """`weights` of the operations, and how many parameters each is the first to use; `live[i]`:
    bytes across a cut before operation i, None where there may be none. `live` is one longer, its
    ends being the model's inputs and outputs."""

    weights: Sequence[float]
    parameters: Sequence[int]
    live: Sequence[int | None]


def cuts(line: Line, most: int = MOST) -> list[int]:
    """The operations before which to cut, ascending. At most `most` pieces, each of which is
    the first to use some parameter.

    The heaviest piece is halved first, where it is narrowest and, among places as narrow, most
    evenly.
    """
    sums = [0.0, *accumulate(line.weights)]
    held = [0, *accumulate(line.parameters)]
    pieces = [(0, len(line.weights))]
    done: list[tuple[int, int]] = []
    while pieces and len(pieces) + len(done) < most:
        piece = max(pieces, key=lambda p: (sums[p[1]] - sums[p[0]], -p[0]))
        pieces.remove(piece)
        where = _best(line, sums, held, piece, sums[-1] / most)
        if where is None:
            done.append(piece)
        else:
            pieces += [(piece[0], where), (where, piece[1])]
    return sorted(start for start, _ in pieces + done if start)


def _best(
    line: Line,
    sums: Sequence[float],
    held: Sequence[int],
    piece: tuple[int, int],
    least: float,
) -> int | None:
    """The narrowest place where both halves still weigh enough; None when there is none."""
    start, end = piece
    middle = (sums[start] + sums[end]) / 2
    found: tuple[int, float, int] | None = None
    for place in range(start + 1, end):
        width = line.live[place]
        weight = min(sums[place] - sums[start], sums[end] - sums[place])
        if width is None or weight < least or held[place] in (held[start], held[end]):
            continue
        candidate = (width, abs(sums[place] - middle), place)
        found = candidate if found is None else min(found, candidate)
    if found is None:
        return None
    ends = max(line.live[start] or 0, line.live[end] or 0)
    heavy = sums[end] - sums[start] > _HEAVY * sums[-1]
    return found[2] if heavy or found[0] <= _WIDER * ends else None


def roots(body: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """By value, the one whose memory it may be a view of: itself, if no other's."""
    found: dict[fx.Node, fx.Node] = {}
    for node in body:
        found[node] = node
        for argument in nodes_in(_shown(node)):
            found[node] = found.get(argument, argument)
    return found


def last_changes(body: Iterable[fx.Node], of: dict[fx.Node, fx.Node]) -> dict[fx.Node, int]:
    """By root, the index of the last operation that changes it in place."""
    found: dict[fx.Node, int] = {}
    for index, node in enumerate(body):
        for argument in nodes_in(changed(node.target, node.args, node.kwargs)):
            found[of.get(argument, argument)] = index
    return found


def _shown(node: fx.Node) -> list[object]:
    if node.target is operator.getitem:  # one of several results
        return list(node.args[:1])
    return shown(node.target, node.args, node.kwargs)
