"""Rule 2 of the checker: what waits for what, and one order that keeps it.

A program is looked at as enter, ROUNDS rounds and leave. Two rounds are enough. Edges reach back
one round at most, so what orders ops of one round, or of two that follow each other, lies within
these two. All rounds write the same buffers in the same order, so what an op reads was written in
its round, in the one before, or never by a round; and values of enter are versions 0, which the
second round refuses where a round makes a next one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plans.graph import Waits, waits
from plans.schema import Op, Program

ROUNDS = 2

Clock = NDArray[np.int32]  # a place is below ROUNDS times the ops of a file


@dataclass(frozen=True)
class Phase:
    """One phase of a program, run `rounds` times, each of `us`. A node of it is
    round * len(ops) + op index."""

    name: str
    ops: tuple[Op, ...]
    us: int
    rounds: int = 1
    period_us: int = 0

    @cached_property
    def waits(self) -> list[Waits]:
        """For each op those that it waits for, where there is such a round."""
        return waits(self.ops)

    @cached_property
    def order(self) -> list[int]:
        """One order of the nodes that keeps every edge, where they have no cycle."""
        nodes = range(len(self.ops) * self.rounds)
        return list(TopologicalSorter({node: self.before(node) for node in nodes}).static_order())

    def label(self, node: int) -> str:
        """The name of a node in messages: `gpt-a.s3.F2 round 1`, `gpt-a.s3.P0 in enter`."""
        number, index = divmod(node, len(self.ops))
        where = f"round {number}" if self.name == "round" else f"in {self.name}"
        return f"{self.ops[index].id} {where}"

    def before(self, node: int) -> list[int]:
        """The nodes that `node` waits for directly."""
        number, index = divmod(node, len(self.ops))
        return [(number - lag) * len(self.ops) + i for i, lag in self.waits[index] if lag <= number]


def phases(program: Program) -> list[Phase]:
    """enter, round and leave of a program of sound shape."""
    return [
        Phase("enter", program.enter, program.enter_us),
        Phase("round", program.round, program.round_us, ROUNDS, program.period_us),
        Phase("leave", program.leave, program.leave_us),
    ]


def cycles(phases: Iterable[Phase]) -> Iterator[str]:
    """One line for each of a few cycles. A cycle lies in one round: no edge goes to an earlier."""
    for phase in phases:
        yield from _cycles(phase)


def _cycles(phase: Phase) -> Iterator[str]:
    graph = {i: {j for j, lag in waits if not lag} for i, waits in enumerate(phase.waits)}
    for _ in range(10):
        try:
            TopologicalSorter(graph).prepare()
            return
        except CycleError as error:
            ring: list[int] = error.args[1]
        names = " -> ".join(phase.ops[i].id for i in ring)
        yield f"{phase.ops[ring[0]].id}: waits for itself in {phase.name}, a deadlock: {names}"
        for before, after in pairwise(ring):
            graph[after].discard(before)


class Streams:
    """The streams of a phase: which nodes each runs, and in which place.

    Places count from 1 over all rounds, so that 0 is "nothing yet" in a clock.
    """

    def __init__(self, phase: Phase) -> None:
        self.names = sorted({op.stream for op in phase.ops})
        numbers = {name: number for number, name in enumerate(self.names)}
        self.of = [numbers[op.stream] for op in phase.ops]  # op index -> stream number
        self.nodes: list[list[int]] = [[] for _ in self.names]
        self.place: list[int] = []
        for node in range(len(phase.ops) * phase.rounds):
            nodes = self.nodes[self.of[node % len(phase.ops)]]
            nodes.append(node)
            self.place.append(len(nodes))


def clocks(phase: Phase, streams: Streams) -> Iterator[tuple[int, Clock]]:
    """Each node of the phase's order with its vector clock: per stream, the place up to which all
    ops surely ended before the node begins (or are the node). Valid until the next is taken."""
    size = len(phase.ops)
    uses = [0] * (size * phase.rounds)
    for node in phase.order:
        for before in phase.before(node):
            uses[before] += 1
    kept: dict[int, Clock] = {}
    for node in phase.order:
        earlier = phase.before(node)
        clock = np.zeros(len(streams.names), dtype=np.int32)
        for before in earlier:
            if clock[streams.of[before % size]] < streams.place[before]:
                np.maximum(clock, kept[before], out=clock)
        for before in earlier:  # a clock that nobody waits for any more is dropped
            uses[before] -= 1
            if not uses[before]:
                del kept[before]
        clock[streams.of[node % size]] = streams.place[node]
        if uses[node]:
            kept[node] = clock
        yield node, clock
