"""Which values of a graph share memory, and until when that memory is changed."""

import operator
from collections.abc import Iterable

from torch import fx

from executor.chain.aliases import changed, shown


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
