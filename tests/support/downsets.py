"""Cuts of a graph of layers into stages, along its downsets: the longest load is least.

A downset holds all predecessors of its layers. What the first stages hold together is one, and a
stage is what one downset has more than another. So stages are a path through downsets, and the best
path is found in ascending order. Models here are chains (`planner.stages.chain`); this is for
profiles of others, where layers branch and join.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

Rule = Callable[[Rows, int], NDArray[np.float64]]
"""The loads of the stages from some downsets to one that holds them, on every kind of place."""


class Step(NamedTuple):
    """A stage on a kind of place, which leads from one state of the devices to another."""

    before: int
    place: int
    after: int


class Stage(NamedTuple):
    """What one downset has more than another, both by row, and its place."""

    inner: int
    outer: int
    place: int


def downsets(graph: nx.DiGraph) -> NDArray[np.bool_]:
    """All downsets by row, from none of the nodes to all; columns are nodes in the graph's order.

    A row comes after all rows that it holds.
    """
    bits = {node: 1 << index for index, node in enumerate(graph)}
    needs = {node: sum(bits[before] for before in graph.pred[node]) for node in graph}
    found = [0]
    last = {0: [node for node in graph if not needs[node]]}  # with what may join each
    while last:
        more: dict[int, list[Any]] = {}
        for held, ready in last.items():
            for node in ready:
                whole = held | bits[node]
                if whole not in more:
                    freed = [n for n in graph.succ[node] if needs[n] & ~whole == 0]
                    more[whole] = [other for other in ready if other != node] + freed
        found += more
        last = more
    size = -(-len(bits) // 8)
    packed = np.frombuffer(b"".join(one.to_bytes(size, "little") for one in found), np.uint8)
    rows = np.unpackbits(packed.reshape(-1, size), axis=1, bitorder="little")
    return rows[:, : len(bits)].astype(bool)


def narrowest(
    rows: NDArray[np.bool_], least: Sequence[int], rule: Rule, steps: Sequence[Step]
) -> tuple[float, list[Stage]]:
    """The least longest load of all paths from none of the nodes to all, and stages that have it.

    rows: all downsets. least: for every node what it adds to its stage's load, on whatever place.
    steps: of state 0 and on, each state's before those that lead on from it. Where there are no
    such stages the load is infinite.
    """
    search = _Search(rows, least, rule, steps)
    known, _ = search.run(search.chain(), np.inf)
    return search.run(search.order, known)


class _Search:
    """A search for paths; the rows in an order in which a row comes after all that it holds."""

    def __init__(
        self, rows: NDArray[np.bool_], least: Sequence[int], rule: Rule, steps: Sequence[Step]
    ) -> None:
        self._rule, self._steps = rule, np.array(steps).T
        self._floor = rows @ np.array(least, dtype=np.int64)
        self._sizes = rows.sum(axis=1)
        self.order = np.lexsort((self._sizes, self._floor))
        padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 64)))
        self._words = np.packbits(padded, axis=1).view(np.uint64).T.copy()

    def _held(self, rows: Rows, by: int) -> Rows:
        """Those of these rows that a row holds."""
        for word in self._words:
            rows = rows[word[rows] & ~word[by] == 0]
        return rows

    def chain(self) -> Rows:
        """Some rows that hold each other, from none of the nodes to all, each one node larger."""
        found = [len(self._sizes) - 1]
        for size in range(int(self._sizes[-1]) - 1, -1, -1):
            found.append(int(self._held(np.flatnonzero(self._sizes == size), found[-1])[0]))
        return np.array(found[::-1])

    def run(self, rows: Rows, limit: float) -> tuple[float, list[Stage]]:
        """The best path through some of the rows, of loads up to a limit."""
        before, place, after = self._steps
        longest = np.full((1 + int(after.max()), len(self._floor)), np.inf)
        longest[0, rows[0]] = 0
        came: dict[tuple[int, int], tuple[int, int]] = {}  # to state and row: from row, by step
        floors, alive = self._floor[rows], np.zeros(len(self._floor), dtype=bool)
        alive[rows[0]] = True
        reach = int(min(limit, floors[-1]))
        for at, outer in enumerate(rows[1:].tolist(), 1):
            inner = rows[np.searchsorted(floors, floors[at] - reach) : at]
            inner = self._held(inner[alive[inner]], outer)
            if not len(inner):
                continue
            loads = np.maximum(self._rule(inner, outer)[place], longest[before[:, None], inner])
            best = loads.argmin(axis=1)
            for step, state in enumerate(after.tolist()):
                load = loads[step, best[step]]
                if load <= limit and load < longest[state, outer]:
                    longest[state, outer], alive[outer] = load, True
                    came[state, outer] = int(inner[best[step]]), step
        return self._path(longest[:, rows[-1]], int(rows[-1]), came)

    def _path(
        self, ends: NDArray[np.float64], row: int, came: dict[tuple[int, int], tuple[int, int]]
    ) -> tuple[float, list[Stage]]:
        """Back from all nodes, by how each row was reached."""
        state, stages = int(ends.argmin()), list[Stage]()
        load = float(ends[state])
        while (state, row) in came:
            inner, step = came[state, row]
            stages.append(Stage(inner, row, int(self._steps[1][step])))
            state, row = int(self._steps[0][step]), inner
        return load, stages[::-1]
