"""Published layer graphs to be cut into stages, and their rules of what a stage costs.

Two formats: PipeDream's profiles and the instances of dnn-partitioning. A graph's `rule` gives the
loads of stages for a search through downsets; `longest` counts the loads of given stages again,
straight from the definition.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from tests.support.downsets import Rows, Rule, Step

Sets = NDArray[np.bool_]
Groups = list[tuple[set[int], int]]
"""Stages, front first: their nodes, and the kind of their place."""


class Graph(Protocol):
    """A graph to cut and its published optimum. per_ms: loads are in such parts of a ms.

    even: no load is less if all is shared out evenly and nothing sent.
    """

    graph: nx.DiGraph
    name: str
    published_ms: float
    per_ms: float

    @property
    def even(self) -> float: ...

    def least(self, node: int) -> int:
        """What a node adds to the load of its stage, wherever that is."""

    def steps(self) -> list[Step]: ...

    def rule(self, rows: Sets) -> Rule: ...

    def longest(self, groups: Groups) -> float: ...


@dataclass(frozen=True)
class Profile:
    """A model of PipeDream's on so many GPUs, in ns: there a link takes a ns for each byte.

    A place is a number of replicas, less one. Inputs cost nothing and stay with the first stage.
    nodes: time, bytes of output, bytes of parameters.
    """

    name: str
    graph: nx.DiGraph
    nodes: dict[int, tuple[int, int, int]]
    gpus: int
    published_ms: float
    per_ms: float = 1e6

    @property
    def even(self) -> float:
        return sum(self.nodes[node][0] for node in self.graph) / self.gpus

    def least(self, node: int) -> int:
        return self.nodes[node][0] // self.gpus

    def steps(self) -> list[Step]:
        """States are GPUs used."""
        used = range(self.gpus + 1)
        return [Step(a, b - a - 1, b) for a in used for b in used[a + 1 :]]

    def rule(self, rows: Sets) -> Rule:
        column = {node: index for index, node in enumerate(self.graph)}
        sums = rows @ np.array([self.nodes[node] for node in self.graph])
        crosses = np.zeros(len(rows))
        for node in self.graph:
            used = rows[:, [column[after] for after in self.graph.succ[node]]].all(axis=1)
            crosses += np.where(rows[:, column[node]] & ~used, self.nodes[node][1], 0)
        replicas = np.arange(1, self.gpus + 1)[:, None]

        def loads(inner: Rows, outer: int) -> NDArray[np.float64]:
            crossing = np.where(inner > 0, np.maximum(crosses[inner], crosses[outer]), 0)
            time, _, held = (sums[outer] - sums[inner]).T
            return self._load(replicas, time, held, crossing)

        return loads

    def longest(self, groups: Groups) -> float:
        front, most = set[int](), 0.0
        for index, (stage, place) in enumerate(groups):
            cuts = (front, front | stage) if index else ()
            crossing = max((self._crossing(cut) for cut in cuts), default=0)
            time, _, held = (sum(self.nodes[node][at] for node in stage) for at in range(3))
            most = max(most, float(self._load(place + 1, time, held, crossing)))
            front = front | stage
        return most

    def _crossing(self, held: set[int]) -> int:
        """Bytes of the outputs that are used beyond some nodes."""
        return sum(self.nodes[node][1] for node in held if set(self.graph.succ[node]) - held)

    @staticmethod
    def _load(replicas: Any, time: Any, held: Any, crossing: Any) -> Any:
        reduced = 4 * (replicas - 1) * held / replicas
        return np.maximum(time + reduced, 2 * crossing) / replicas


def profiles_of(name: str, model: dict[str, Any]) -> Iterator[Profile]:
    """One for every number of GPUs with a published partition."""
    nodes = {
        node[0]: (1000 * (node[2] + node[3]), int(np.sum(node[4])), node[5])
        for node in model["nodes"]
        if not node[1].startswith("Input")
    }
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edge for edge in model["edges"] if edge[0] in nodes)
    for node in [node for node in graph if not graph.succ[node]]:
        if graph.in_degree(node) == 1 and not (nodes[node][0] or nodes[node][2]):
            graph.remove_node(node)  # an output that nobody uses goes with its producer
    for given in model["partitions"]:
        gpus = given["gpus"]
        yield Profile(f"{name}, {gpus} GPUs", graph, nodes, gpus, 1e3 * given["time_per_stage_s"])


@dataclass(frozen=True)
class Instance:
    """An instance of dnn-partitioning, in ps. Places are accelerators (0) and CPUs (1).

    Nodes are color classes. nodes: time on an accelerator, on a CPU, bytes. nets: the classes that
    something sent ties together, with its time; an accelerator with only a part of them pays once.
    """

    name: str
    graph: nx.DiGraph
    nodes: dict[int, tuple[int, ...]]
    nets: dict[frozenset[int], int]
    devices: tuple[int, int]
    limit: int
    published_ms: float
    per_ms: float = 1e9

    @property
    def even(self) -> float:
        speed = max((own[0] / own[1] for own in self.nodes.values() if own[1]), default=0)
        whole = sum(own[0] for own in self.nodes.values())
        return whole / (self.devices[0] + self.devices[1] * speed)

    def least(self, node: int) -> int:
        return min(self.nodes[node][:2])

    def steps(self) -> list[Step]:
        """States are accelerators and CPUs used."""
        counts = (range(count + 1) for count in self.devices)
        states = {used: at for at, used in enumerate(product(*counts))}
        return [
            Step(at, cpu, states[more])
            for (a, b), at in states.items()
            for cpu, more in enumerate(((a + 1, b), (a, b + 1)))
            if more in states
        ]

    def rule(self, rows: Sets) -> Rule:
        sums = rows @ np.array([self.nodes[node] for node in self.graph])
        column = {node: index for index, node in enumerate(self.graph)}
        price = np.array(list(self.nets.values()))
        members = [[column[node] for node in net] for net in self.nets]
        held = np.array([rows[:, own].sum(axis=1) for own in members], dtype=np.int16)
        split = (held > 0) & (held < np.array([len(own) for own in members])[:, None])
        crossing = price @ split

        def loads(inner: Rows, outer: int) -> NDArray[np.float64]:
            time, cpu, size = (sums[outer] - sums[inner]).T
            nets = np.flatnonzero(split[:, outer])
            before, now = held[nets[:, None], inner], held[nets, outer][:, None]
            # what the front splits this stage has a part of, unless all its part is in the front
            change = (before == 0).astype(np.int64) - (before == now)
            sent = crossing[inner] + price[nets] @ change
            return np.stack([np.where(size <= self.limit, time + sent, np.inf), cpu])

        return loads

    def longest(self, groups: Groups) -> float:
        most = 0.0
        for stage, on_cpu in groups:
            time, cpu, size = (sum(self.nodes[node][at] for node in stage) for at in range(3))
            sent = sum(price for net, price in self.nets.items() if net & stage and net - stage)
            most = max(most, cpu if on_cpu else time + sent if size <= self.limit else np.inf)
        return most


def instance_of(name: str, data: dict[str, Any]) -> Instance:
    """Without classes that cost nothing and are tied to one other only: they go with it."""
    graph, color = _classes(data)
    nodes = dict.fromkeys(graph, (0, 0, 0))
    reached = {node: {own} for node, own in color.items()}
    for node, accelerator, cpu, size, *_ in data["nodes"]:
        more = round(accelerator * 1e9), round(cpu * 1e9), size
        nodes[color[node]] = tuple(a + b for a, b in zip(nodes[color[node]], more, strict=True))
    for a, b in data["edges"]:
        reached[a].add(color[b])
    limit = data["accelerator_memory_bytes"]
    roomy = sum(own[2] for own in nodes.values()) <= limit
    free = {node for node, own in nodes.items() if not any(own[: 2 if roomy else 3])}
    tied = nx.Graph((color[a], color[b]) for a, b in data["edges"] if color[a] != color[b])
    while ends := [node for node in free if node in tied and tied.degree[node] == 1]:
        tied.remove_node(ends[0])
        graph.remove_node(ends[0])
    nets = defaultdict[frozenset[int], int](int)
    for node in data["nodes"]:
        nets[frozenset(reached[node[0]] & set(graph))] += round(node[4] * 1e9)
    devices = data["accelerators"], data["cpus"]
    return Instance(name, graph, nodes, nets, devices, limit, data["optimum_max_load_ms"])


def _classes(data: dict[str, Any]) -> tuple[nx.DiGraph, dict[int, int]]:
    """The graph that color classes make, and the class of every node.

    Classes whose forward nodes are in a circle are one. Where a class has backward nodes only,
    these say its order, the other way round.
    """
    color = {node[0]: node[6] for node in data["nodes"]}
    backward = {node[0] for node in data["nodes"] if node[5]}
    forward = {color[node] for node in color.keys() - backward}
    graph = nx.DiGraph()
    graph.add_nodes_from(color.values())
    for a, b in data["edges"]:
        if b not in backward:
            graph.add_edge(color[a], color[b])
        elif a in backward and not {color[a], color[b]} <= forward:
            graph.add_edge(color[b], color[a])
    classes = nx.condensation(graph)
    return classes, {node: classes.graph["mapping"][own] for node, own in color.items()}


def graphs(data: dict[str, Any]) -> Iterator[Graph]:
    """All of a file, whichever of the two formats it has; other files have `models` of their own,
    without partitions."""
    for name, model in data.get("models", {}).items():
        if "partitions" in model:
            yield from profiles_of(name, model)
    for name, instance in data.get("instances", {}).items():
        yield instance_of(name, instance)
