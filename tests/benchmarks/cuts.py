"""Cuts of published layer graphs into stages: our bottleneck against the published optimum.

    python -m tests.benchmarks.cuts FILE [--json]

FILE has `models` (profiles in PipeDream's format, with partitions for so many GPUs) or `instances`
(graphs of dnn-partitioning, with accelerators, CPUs and memory); their notes define what a stage
costs. Both ask for stages along downsets. Ours is counted again from its stages, straight from
that definition. Bound: the work shared out evenly, nothing sent. Exit code 1 if a row is longer.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from planner.stages.graph import Rows, Rule, Step, downsets, narrowest

ROUNDED = 1e-6  # published figures have six digits behind the point or more

Sets = NDArray[np.bool_]
Groups = list[tuple[set[int], int]]
"""Stages, front first: their nodes, and the kind of their place."""


@dataclass(frozen=True)
class Case:
    """A graph to cut and its published optimum, in ms.

    least: of each node, what it adds to the load of its stage wherever it is. rule: of the graph's
    downsets. load: the longest load of some stages, from the definition. ms: loads per ms.
    """

    name: str
    theirs: float
    bound: float
    graph: nx.DiGraph
    least: dict[int, int]
    rule: Callable[[Sets], Rule]
    steps: list[Step]
    load: Callable[[Groups], float]
    ms: float


@dataclass(frozen=True)
class Row:
    """What came out, in ms."""

    name: str
    ours: float
    theirs: float
    bound: float
    gap: float
    stages: int
    downsets: int
    cpu_s: float

    @property
    def short(self) -> bool:
        return self.ours > self.theirs * (1 + ROUNDED)


def solve(case: Case) -> Row:
    """Cut it, and look at the stages again."""
    begun = time.process_time()
    rows = downsets(case.graph)
    least = [case.least[node] for node in case.graph]
    found, stages = narrowest(rows, least, case.rule(rows), case.steps)
    spent = time.process_time() - begun
    nodes = np.array(case.graph)
    groups = [(set(nodes[rows[s.outer] & ~rows[s.inner]].tolist()), s.place) for s in stages]
    ours = case.load(groups)
    assert abs(ours - found) <= 1e-9 * found, (ours, found)
    gap = 1 - case.bound * case.ms / ours
    ours /= case.ms
    return Row(case.name, ours, case.theirs, case.bound, gap, len(stages), len(rows), spent)


def pipedream(model: str, profile: dict[str, Any]) -> Iterator[Case]:
    """A case for every number of GPUs, in ns: there a link takes a ns for each byte.

    A place is a number of replicas, less one. Inputs cost nothing and stay with the first stage.
    """
    nodes = [node for node in profile["nodes"] if not node[1].startswith("Input")]
    work = {node[0]: 1000 * (node[2] + node[3]) for node in nodes}
    sent = {node[0]: int(np.sum(node[4])) for node in nodes}
    params = {node[0]: node[5] for node in nodes}
    graph = nx.DiGraph()
    graph.add_nodes_from(work)
    graph.add_edges_from(edge for edge in profile["edges"] if edge[0] in work)
    for node in [n for n in reversed(list(nx.topological_sort(graph))) if not graph.succ[n]]:
        if not work[node] and not params[node] and graph.in_degree(node) == 1:
            graph.remove_node(node)  # an output that nobody uses goes with its producer

    def load(replicas: Any, compute: Any, held: Any, crossing: Any) -> Any:
        reduced = 4 * (replicas - 1) * held / replicas
        return np.maximum(compute + reduced, 2 * crossing) / replicas

    def rule(rows: Sets, gpus: int) -> Rule:
        column = {node: index for index, node in enumerate(graph)}
        time, held = (rows @ np.array([of[n] for n in graph]) for of in (work, params))
        crosses = np.zeros(len(rows))
        for node in graph:
            used = rows[:, [column[after] for after in graph.succ[node]]].all(axis=1)
            crosses += np.where(rows[:, column[node]] & ~used, sent[node], 0)
        replicas = np.arange(1, gpus + 1)[:, None]

        def loads(inner: Rows, outer: int) -> NDArray[np.float64]:
            crossing = np.where(inner > 0, np.maximum(crosses[inner], crosses[outer]), 0)
            of = load(replicas, time[outer] - time[inner], held[outer] - held[inner], crossing)
            return np.asarray(of, dtype=float)

        return loads

    def longest(groups: Groups) -> float:
        ends, most = set[int](), 0.0
        for index, (stage, place) in enumerate(groups):
            crossing = 0
            for cut in (ends, ends | stage) if index else ():
                crossing = max(crossing, sum(sent[n] for n in cut if set(graph.succ[n]) - cut))
            own = sum(work[n] for n in stage), sum(params[n] for n in stage)
            most = max(most, float(load(place + 1, *own, crossing)))
            ends = ends | stage
        return most

    total = sum(work[node] for node in graph)
    for partition in profile["partitions"]:
        gpus = partition["gpus"]
        yield Case(
            f"{model}, {gpus} GPUs",
            1e3 * partition["time_per_stage_s"],
            total / gpus / 1e6,
            graph,
            {node: work[node] // gpus for node in graph},
            lambda rows, gpus=gpus: rule(rows, gpus),  # type: ignore[misc]
            [Step(a, b - a - 1, b) for a in range(gpus) for b in range(a + 1, gpus + 1)],
            longest,
            1e6,
        )


def partitioning(name: str, instance: dict[str, Any]) -> Case:
    """One instance, in ps: places are accelerators (0) and CPUs (1), nodes are color classes.

    Everything that a node sends or gets ties the classes at both ends: who has a part of them only
    pays for it, once.
    """
    graph, color = _classes(instance)
    times = {node: [0, 0, 0] for node in graph}
    for node, accelerator, cpu, memory, *_ in instance["nodes"]:
        for at, value in enumerate((accelerator * 1e9, cpu * 1e9, memory)):
            times[color[node]][at] += round(value)
    ends = {node: {own} for node, own in color.items()}
    for a, b in instance["edges"]:
        ends[a].add(color[b])
    nets = [(ends[node[0]], round(node[4] * 1e9)) for node in instance["nodes"]]
    limit = instance["accelerator_memory_bytes"]
    roomy = sum(own[2] for own in times.values()) <= limit
    free = {node for node in graph if not any(times[node][: 2 if roomy else 3])}
    tied = nx.Graph((color[a], color[b]) for a, b in instance["edges"] if color[a] != color[b])
    while ends := [node for node in free if node in tied and tied.degree[node] == 1]:
        tied.remove_node(ends[0])  # it goes with the only one that it is tied to
        graph.remove_node(ends[0])
        for net, _ in nets:
            net.discard(ends[0])

    def rule(rows: Sets) -> Rule:
        work = rows @ np.array([times[node] for node in graph])
        column = {node: index for index, node in enumerate(graph)}
        merged = defaultdict[frozenset[int], int](int)
        for net, price in nets:
            merged[frozenset(column[n] for n in net)] += price
        price = np.array(list(merged.values()))
        held = np.array([rows[:, list(net)].sum(axis=1) for net in merged], dtype=np.int16)
        split = (held > 0) & (held < np.array([len(net) for net in merged])[:, None])
        crossing = price @ split

        def loads(inner: Rows, outer: int) -> NDArray[np.float64]:
            own = work[outer] - work[inner]
            nets = np.flatnonzero(split[:, outer])
            before, now = held[nets[:, None], inner], held[nets, outer][:, None]
            # nets that the front splits are split, unless this stage has no part; and new ones
            change = (before == 0).astype(np.int64) - (before == now)
            sent = crossing[inner] + price[nets] @ change
            accelerator = np.where(own[:, 2] <= limit, own[:, 0] + sent, np.inf)
            return np.stack([accelerator, own[:, 1]])

        return loads

    def longest(groups: Groups) -> float:
        most = 0.0
        for stage, cpu in groups:
            own = [sum(times[node][at] for node in stage) for at in range(3)]
            sent = sum(price for net, price in nets if net & stage and net - stage)
            most = max(most, own[1] if cpu else own[0] + sent if own[2] <= limit else np.inf)
        return most

    counts = instance["accelerators"], instance["cpus"]
    states = {used: at for at, used in enumerate(product(*(range(n + 1) for n in counts)))}
    steps = [
        Step(at, cpu, states[more])
        for (accelerators, cpus), at in states.items()
        for cpu, more in enumerate(((accelerators + 1, cpus), (accelerators, cpus + 1)))
        if more in states
    ]
    speed = max((own[0] / own[1] for own in times.values() if own[1]), default=0)
    bound = sum(own[0] for own in times.values()) / (counts[0] + counts[1] * speed) / 1e9
    least = {node: min(times[node][:2]) for node in graph}
    theirs = instance["optimum_max_load_ms"]
    return Case(name, theirs, bound, graph, least, rule, steps, longest, 1e9)


def _classes(instance: dict[str, Any]) -> tuple[nx.DiGraph, dict[int, int]]:
    """The graph that color classes make, and the class of every node.

    Classes whose forward nodes are in a circle are one. Where a class has backward nodes only,
    these say its order, the other way round.
    """
    color = {node[0]: node[6] for node in instance["nodes"]}
    backward = {node[0] for node in instance["nodes"] if node[5]}
    forward = {color[node] for node in color.keys() - backward}
    graph = nx.DiGraph()
    graph.add_nodes_from(color.values())
    for a, b in instance["edges"]:
        if b not in backward:
            graph.add_edge(color[a], color[b])
        elif a in backward and not {color[a], color[b]} <= forward:
            graph.add_edge(color[b], color[a])
    classes = nx.condensation(graph)
    return classes, {node: classes.graph["mapping"][own] for node, own in color.items()}


def cases(data: dict[str, Any]) -> Iterator[Case]:
    """All of a file, whichever of the two formats it has."""
    for name, profile in data.get("models", {}).items():
        yield from pipedream(name, profile)
    for name, instance in data.get("instances", {}).items():
        yield partitioning(name, instance)


def main() -> int:
    """Cut every graph and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    args = parser.parse_args()
    found = list(cases(json.loads(args.file.read_text())))
    if not found:
        parser.error(f"{args.file} has neither models nor instances; give a file that has")
    rows = [solve(case) for case in found]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print("| graph | ours ms | theirs ms | bound ms | gap | stages | downsets | cpu s |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for row in rows:
            print(
                f"| {row.name} | {row.ours:.6f} | {row.theirs:.6f} | {row.bound:.3f} | "
                f"{row.gap:.1%} | {row.stages} | {row.downsets:,} | {row.cpu_s:.1f} |"
                + " longer!"
                * row.short
            )
    return int(any(row.short for row in rows))


if __name__ == "__main__":
    sys.exit(main())
