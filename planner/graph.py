"""The layers of a task as a graph: a chain, with ties between layers that share a parameter."""

from itertools import pairwise

import networkx as nx

from profiles.schema import Task


def layer_graph(task: Task) -> nx.MultiDiGraph:
    """Nodes are layer indices with their names; edges are the boundaries between them (kind
    "boundary") and the ties from the first layer of a group to the others (kind "tie"); between
    neighbours there may be both."""
    graph = nx.MultiDiGraph(task=task.name)
    for index, layer in enumerate(task.layers):
        graph.add_node(index, name=layer.name)
    graph.add_edges_from(pairwise(range(len(task.layers))), kind="boundary")
    for owner, *users in task.ties:
        graph.add_edges_from(((owner, user) for user in users), kind="tie")
    return graph


def cut_points(graph: nx.MultiDiGraph) -> list[int]:
    """Where the chain may be cut, ends included: cut c separates layer c-1 from layer c.

    A cut that separates tied layers would need one parameter in two shards, so the cut of a
    position is allowed only when the one edge that crosses it is a boundary.
    """
    count = graph.number_of_nodes()
    crossing = [0] * (count + 1)
    for left, right in graph.edges():
        for cut in range(left + 1, right + 1):
            crossing[cut] += 1
    return [0, *(cut for cut in range(1, count) if crossing[cut] == 1), count]
