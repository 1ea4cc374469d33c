"""Cuts of graphs, compared with all ways to give layers to devices that follow each other."""

from itertools import product
from math import inf

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.downsets import Rows, Step, downsets, narrowest


def graphs(most: int) -> st.SearchStrategy[nx.DiGraph]:
    """Nodes 0, 1, ...; edges to later ones."""

    def made(nodes: int, edges: set[tuple[int, int]]) -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(nodes))
        graph.add_edges_from((a, b) for a, b in edges if a < b < nodes)
        return graph

    ends = st.integers(0, most - 1)
    return st.builds(made, st.integers(most - 3, most), st.sets(st.tuples(ends, ends), max_size=8))


@given(graphs(7))
def test_downsets_are_the_sets_that_hold_all_predecessors(graph: nx.DiGraph) -> None:
    """Each of them once, and after all that it holds."""
    found = [set(np.flatnonzero(row)) for row in downsets(graph)]
    ways = ({n for n in graph if way[n]} for way in product((False, True), repeat=len(graph)))
    closed = [way for way in ways if all(a in way for a, b in graph.edges if b in way)]
    assert len(found) == len(closed)
    assert all(way in found for way in closed)
    assert all(not found[b] < found[a] for b in range(len(found)) for a in range(b))


@settings(deadline=None, max_examples=120)
@given(
    graphs(6),
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.integers(0, 3),
    st.integers(0, 1),
    st.integers(1, 9),
)
def test_stages_are_the_best_of_all(
    graph: nx.DiGraph, times: list[int], fast: int, slow: int, most: int
) -> None:
    """On fast and slow places, with what crosses counted on fast ones, which hold so many nodes."""

    def load(nodes: set[int], place: int) -> float:
        if place:
            return 3 * sum(times[node] for node in nodes)
        crossing = sum((a in nodes) != (b in nodes) for a, b in graph.edges)
        return sum(times[node] for node in nodes) + crossing if len(nodes) <= most else inf

    rows = downsets(graph)

    def rule(inner: Rows, outer: int) -> np.ndarray:
        stages = [set(np.flatnonzero(rows[outer] & ~rows[one])) for one in inner]
        return np.array([[load(stage, place) for stage in stages] for place in (0, 1)], dtype=float)

    states = {used: at for at, used in enumerate(product(range(fast + 1), range(slow + 1)))}
    steps = [
        Step(at, place, states[used[0] + 1 - place, used[1] + place])
        for used, at in states.items()
        for place in (0, 1)
        if (used[0] + 1 - place, used[1] + place) in states
    ]
    if not steps:
        return
    found, stages = narrowest(rows, times[: len(graph)], rule, steps)
    assert found == best(graph, load, fast, slow)
    if found < inf:
        sets = [set(np.flatnonzero(rows[s.outer] & ~rows[s.inner])) for s in stages]
        assert set.union(*sets) == set(graph)
        assert sum(map(len, sets)) == len(graph)
        assert max(load(own, s.place) for own, s in zip(sets, stages, strict=True)) == found


def best(graph: nx.DiGraph, load, fast: int, slow: int) -> float:
    """Every node to one of some devices in a row, each of either kind, no edge back."""
    found = inf
    for places in product((0, 1), repeat=fast + slow):
        if sum(places) != slow:
            continue
        for way in product(range(len(places)), repeat=len(graph)):
            if all(way[a] <= way[b] for a, b in graph.edges):
                groups = {d: {n for n in graph if way[n] == d} for d in way}
                found = min(found, max(load(own, places[d]) for d, own in groups.items()))
    return found
