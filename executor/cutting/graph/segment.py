"""Where to cut the row of operations of a model's graph, and some of them in a row as a layer.

It is cut where little goes across, in even pieces.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from executor.cutting import Fixed, changed, device_of, hold, packed, shown, unpacked

MOST = 64  # layers
_WIDER = 2  # a cut may be so many times as wide as the wider end of the piece it halves
_HEAVY = 1 / 8  # of all weight: a piece so heavy is cut however wide the cut is


@dataclass(frozen=True)
class Ref:
    """The value that the operation at this place in the graph makes."""

    place: int


@dataclass(frozen=True)
class Code:
    """One operation: what it is called with holds `Ref`s. `where`: it makes tensors on a device,
    which is the one the boundary is on."""

    place: int
    function: Callable[..., Any]
    args: Any
    kwargs: Mapping[str, Any]
    where: bool
    drops: tuple[int, ...]  # values that nobody needs after it

    def __deepcopy__(self, memo: dict[int, Any]) -> "Code":
        return self


class Segment(nn.Module):
    """Consecutive operations of the graph, as a layer."""

    def __init__(
        self,
        label: str,
        codes: Sequence[Code],
        given: Sequence[int | None],
        made: Sequence[int],
        held: Mapping[int, Tensor],
        parts: Mapping[int, nn.Module],
        ends: tuple[Any, TreeSpec] | None,
        *,
        first: bool,
    ) -> None:
        """`given`: places of the values that come with the boundary, or as the batch's inputs
        (None: nobody needs it). `made`: those that are handed on. `held`: parameters, buffers and
        constants by place, `parts` graphs that operations call. `ends`: the model's output."""
        super().__init__()
        self.label = label
        self._codes, self._given, self._made = tuple(codes), tuple(given), tuple(made)
        self._ends, self._first = Fixed(ends), first
        self._names = hold(self, held)
        self._parts = nn.ModuleDict({str(place): part for place, part in parts.items()})

    def forward(self, value: Any) -> Any:
        leaves = tree_leaves(value) if self._first else unpacked(value)
        where = device_of(leaves)
        values: dict[int, Any] = {
            place: leaf
            for place, leaf in zip(self._given, leaves, strict=True)
            if place is not None
        }
        values |= {place: getattr(self, name) for place, name in self._names.items()}
        values |= {int(place): part for place, part in self._parts.items()}
        for code in self._codes:
            args, kwargs = _filled(code.args, values), _filled(code.kwargs, values)
            if code.where:
                kwargs["device"] = where
            values[code.place] = code.function(*args, **kwargs)
            for place in code.drops:
                del values[place]
        if self._ends.value is None:
            return packed([values[place] for place in self._made])
        refs, tree = self._ends.value
        return tree_unflatten(_filled(refs, values), tree)


def _filled(value: Any, values: Mapping[int, Any]) -> Any:
    """`value` with what its `Ref`s stand for."""
    if isinstance(value, Ref):
        return values[value.place]
    if isinstance(value, list | tuple):
        return [_filled(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value


def dropping(order: Sequence[tuple[int, Any, Any, Any]], kept: set[int]) -> list[Code]:
    """The operations, each with the values that are not needed after it."""
    last: dict[int, int] = {}
    for index, (place, _, args, kwargs) in enumerate(order):
        for ref in (Ref(place), *refs_in((args, kwargs))):
            last[ref.place] = index
    drops: list[list[int]] = [[] for _ in order]
    for place, index in last.items():
        if place not in kept:
            drops[index].append(place)
    return [
        Code(place, function, args, kwargs, kwargs.get("device") is not None, tuple(dropped))
        for (place, function, args, kwargs), dropped in zip(order, drops, strict=True)
    ]


def refs_in(value: Any) -> list[Ref]:
    """All `Ref`s in what an operation is called with, however deep."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [ref for item in value for ref in refs_in(item)]
    return []


@dataclass(frozen=True)
class Line:
    """`weights` of the operations, and how many parameters each is the first to use; `live[i]`:
    bytes across a cut before operation i, None where there may be none. `live` is one longer, its
    ends being the model's inputs and outputs."""

    weights: Sequence[float]
    parameters: Sequence[int]
    live: Sequence[int | None]


def cuts(line: Line, most: int = MOST) -> list[int]:
    """Where to cut, ascending: before which operations. At most `most` pieces, each of which is
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
        for argument in _nodes(_shown(node)):
            found[node] = found.get(argument, argument)
    return found


def last_changes(body: Iterable[fx.Node], of: dict[fx.Node, fx.Node]) -> dict[fx.Node, int]:
    """By root, the index of the last operation that changes it in place."""
    found: dict[fx.Node, int] = {}
    for index, node in enumerate(body):
        for argument in _nodes(changed(node.target, node.args, node.kwargs)):
            found[of.get(argument, argument)] = index
    return found


def _shown(node: fx.Node) -> list[object]:
    if node.target is operator.getitem:  # one of several results
        return list(node.args[:1])
    return shown(node.target, node.args, node.kwargs)


def _nodes(values: Iterable[object]) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]
