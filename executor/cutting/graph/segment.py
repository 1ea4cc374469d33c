"""Segments: consecutive operations of a model's graph as a layer, and the choice of the cuts
between them, in even pieces where little goes across."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from executor.cutting.parts import Shared, packed
from executor.cutting.record import PICKS, aliased
from executor.cutting.shells import device_of, hold

MOST = 64  # layers
_WIDER = 2  # a cut may be so many times as wide as the wider end of the piece it halves
_HEAVY = 1 / 8  # of all weight: a piece so heavy is cut however wide the cut is


@dataclass(frozen=True)
class Code(Shared):
    """The operations of a segment as a function without parameters of its own: of the tensors that
    the segment holds, the device, and those of the boundary before it, or the batch's inputs.
    `end`: the structure of the model's output, in the last segment."""

    function: fx.GraphModule
    end: TreeSpec | None


class Segment(nn.Module):
    """Consecutive operations of the graph, as a layer."""

    def __init__(self, label: str, code: Code, held: Sequence[Tensor]) -> None:
        """`held`: parameters, buffers and constants."""
        super().__init__()
        self.label = label
        self._code = code
        self._names = hold(self, held)

    def forward(self, value: Any) -> Any:
        code = self._code
        leaves = tree_leaves(value)
        held = [getattr(self, name) for name in self._names]
        made = code.function.forward(*held, device_of(leaves), *leaves)
        return packed(made) if code.end is None else tree_unflatten(made, code.end)

    @property
    def picked_parameters(self) -> frozenset[int]:
        """The ids of the parameters that autocast leaves as they are: of which rows are taken."""
        ways: dict[int, bool] = {}
        for name, node in zip(self._names, self._code.function.graph.nodes, strict=False):
            key, picks = id(getattr(self, name)), all(user.target in PICKS for user in node.users)
            ways[key] = picks and ways.get(key, True)
        return frozenset(key for key, picks in ways.items() if picks)


def nodes_in(*values: Any) -> list[fx.Node]:
    """All nodes in these, however deep."""
    found: list[fx.Node] = []
    map_arg(values, found.append)
    return found


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
    found: list[tuple[int, float, int]] = []
    for place in range(start + 1, end):
        width = line.live[place]
        weight = min(sums[place] - sums[start], sums[end] - sums[place])
        if width is not None and weight >= least and held[start] < held[place] < held[end]:
            found.append((width, abs(sums[place] - middle), place))
    if not found:
        return None
    width, _, place = min(found)
    ends = max(line.live[start] or 0, line.live[end] or 0)
    heavy = sums[end] - sums[start] > _HEAVY * sums[-1]
    return place if heavy or width <= _WIDER * ends else None


def last_changes(body: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """By value, the index of the last operation that changes its memory in place, as itself or as
    another value that may be a view of it."""
    root: dict[fx.Node, fx.Node] = {}
    found: dict[fx.Node, int] = {}
    for index, node in enumerate(body):
        root[node] = node
        shown = aliased(node.target, node.args, node.kwargs, written=False)
        if node.target is operator.getitem:  # one of several results
            shown = [node.args[0]]
        for argument in nodes_in(shown):
            root[node] = root.get(argument, argument)
        for argument in nodes_in(aliased(node.target, node.args, node.kwargs, written=True)):
            found[root.get(argument, argument)] = index
    return found | {node: found[own] for node, own in root.items() if own in found}
