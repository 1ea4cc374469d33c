"""Blocks of forwards and backwards merged into one sequence per device.

A block is a microbatch on a stage in one direction: the passes of the stage's shards without a
pause. A device has a list of forwards, one of backwards, and a depth: it takes forwards until so
many are in flight, from then on a backward and a forward in turn. Forwards of one group of
microbatches wait for all backwards of the group before.

Where memory allows no further forward, a backward comes first; where a sequence would wait for
itself, as it may where replicas are unequal or memory is short, the first block that can run is
taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from planner.orders.passes import Order, Pass, Pipeline, Places, share


class Block(NamedTuple):
    """A microbatch on a stage."""

    stage: int
    microbatch: int


@dataclass(frozen=True)
class Stages:
    """Neighbouring shards that are run as one.

    shards: of each stage. where: the device of every microbatch, by stage. held: by device and
    stage, what a microbatch holds. ahead: what it may still need of the same device in later
    stages; while that is kept free, no microbatch is stuck halfway.
    """

    shards: tuple[range, ...]
    where: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]
    ahead: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, pipeline: Pipeline, places: Places, alone: bool = False) -> "Stages":
        """Neighbours in the same places; with `alone`, every shard by itself.

        Infeasible where one microbatch is more than a device has memory for.
        """
        starts = [s for s in range(pipeline.shards) if alone or not s or places[s] != places[s - 1]]
        shards = [range(*ends) for ends in pairwise([*starts, pipeline.shards])]
        where = [tuple(share(pipeline.microbatches, places[part[0]])) for part in shards]
        held = [
            tuple(
                sum(costs[s].held for s in part) if d in places[part[0]] else 0 for part in shards
            )
            for d, costs in enumerate(pipeline.costs)
        ]
        ahead = [tuple(sum(row[k + 1 :]) for k in range(len(row))) for row in held]
        for device, row in enumerate(held):
            if pipeline.limits is not None and sum(row) > pipeline.limits[device]:
                raise pipeline.lacking(device, sum(row))
        return cls(tuple(shards), tuple(where), tuple(held), tuple(ahead))

    def of_device(self, device: int) -> list[int]:
        """The stages that a device has microbatches of."""
        return [k for k, where in enumerate(self.where) if device in where]

    def own(self, device: int, stage: int) -> list[int]:
        """The microbatches of a stage that a device has."""
        return [m for m, home in enumerate(self.where[stage]) if home == device]

    def blocks(self, device: int) -> list[Block]:
        """All blocks of a device, in one direction."""
        return [
            Block(stage, microbatch)
            for stage in range(len(self.shards))
            for microbatch in self.own(device, stage)
        ]


Step = tuple[bool, Block]
"""A block taken: its forward or its backward."""


class Line(NamedTuple):
    """A device's blocks in either direction, in turn, how many forwards are in flight, and how many
    microbatches are a group."""

    forwards: Sequence[Block]
    backwards: Sequence[Block]
    depth: int
    group: int

    def blocks(self, forward: bool) -> Sequence[Block]:
        """Those of one direction."""
        return self.forwards if forward else self.backwards


def merged(pipeline: Pipeline, stages: Stages, lines: Sequence[Line]) -> Order:
    """The order of these blocks, one pass after another."""
    merger = _Merger(pipeline, stages, lines)
    merger.run()
    return tuple(
        tuple(
            item
            for forward, block in taken
            for item in _passes(pipeline, stages.shards[block.stage], block, forward)
        )
        for taken in merger.taken
    )


def _passes(pipeline: Pipeline, shards: range, block: Block, forward: bool) -> list[Pass]:
    if forward:
        return [Pass("F", s, block.microbatch) for s in shards if pipeline.has_forward(s)]
    return [Pass("B", s, block.microbatch) for s in reversed(shards)]


class _Merger:
    """Lets every device take its next block as soon as the block's input has been computed."""

    def __init__(self, pipeline: Pipeline, stages: Stages, lines: Sequence[Line]) -> None:
        self.limits, self.stages, self.lines = pipeline.limits, stages, lines
        self.taken: list[list[Step]] = [[] for _ in lines]
        self.done: set[Step] = set()
        self.at = [[0, 0] for _ in lines]  # next backward, next forward
        self.used = [0] * len(lines)
        self.flight = [0] * len(lines)
        self.waiting: dict[Step, int] = {}

    def run(self) -> None:
        """Until every device has taken all its blocks."""
        left = sum(len(line.forwards) + len(line.backwards) for line in self.lines)
        ready = list(range(len(self.lines)))
        while len(self.done) < left:
            while ready:
                self._advance(ready.pop(), ready)
            if len(self.done) < left:
                device, step = self._exception()
                self._take(device, step, ready)
                ready.append(device)

    def _advance(self, device: int, ready: list[int]) -> None:
        """Takes a device's blocks in turn until one has no input."""
        while (step := self._next(device)) is not None:
            needed = self._input(step)
            if needed is not None and needed not in self.done:
                self.waiting[needed] = device
                return
            self._take(device, step, ready)

    def _take(self, device: int, step: Step, ready: list[int]) -> None:
        forward, block = step
        sign = 1 if forward else -1
        self.flight[device] += sign
        self.used[device] += sign * self.stages.held[device][block.stage]
        self.taken[device].append(step)
        self.done.add(step)
        if step in self.waiting:
            ready.append(self.waiting.pop(step))

    def _next(self, device: int) -> Step | None:
        """The next pass by a device's depth and memory; None at the end."""
        forward, backward = self._head(device, True), self._head(device, False)
        if forward and backward and self._may_begin(device, forward, backward):
            return True, forward
        return (False, backward) if backward else None

    def _may_begin(self, device: int, forward: Block, backward: Block) -> bool:
        """A forward is next, and not the next backward."""
        line = self.lines[device]
        return (
            self.flight[device] < line.depth
            and forward.microbatch // line.group <= backward.microbatch // line.group
            and self._fits(device, forward)
        )

    def _head(self, device: int, forward: bool) -> Block | None:
        """The first block of a direction that is not done."""
        line, at = self.lines[device].blocks(forward), self.at[device]
        while at[forward] < len(line):
            if (forward, line[at[forward]]) not in self.done:
                return line[at[forward]]
            at[forward] += 1
        return None

    def _input(self, step: Step) -> Step | None:
        forward, (stage, microbatch) = step
        if forward:
            return (True, Block(stage - 1, microbatch)) if stage else None
        if stage + 1 < len(self.stages.shards):
            return False, Block(stage + 1, microbatch)
        return True, Block(stage, microbatch)

    def _fits(self, device: int, block: Block) -> bool:
        if self.limits is None:
            return True
        wanted = self.stages.held[device][block.stage] + self.stages.ahead[device][block.stage]
        return self.used[device] + wanted <= self.limits[device]

    def _exception(self) -> tuple[int, Step]:
        """A block that can run although it is not its device's next; backwards first."""
        for forward in (False, True):
            for device, line in enumerate(self.lines):
                blocks = line.blocks(forward)[self.at[device][forward] :]
                for block in _first_of_stages(blocks, forward, self.done):
                    needed = self._input((forward, block))
                    if needed is not None and needed not in self.done:
                        continue
                    if not forward or self._fits(device, block):
                        return device, (forward, block)
        raise AssertionError("no block can run")


def _first_of_stages(blocks: Sequence[Block], forward: bool, done: set[Step]) -> Iterator[Block]:
    """The first block of every stage that is not done."""
    seen: set[int] = set()
    for block in blocks:
        if block.stage not in seen and (forward, block) not in done:
            seen.add(block.stage)
            yield block
