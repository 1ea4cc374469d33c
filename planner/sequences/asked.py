"""A task with lengths on devices of one kind: its costs at any number of tokens, and the most
tokens that pipelines of each depth have memory for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.errors import Infeasible
from planner.inputs import Effort, Kind, costs_at
from planner.lowering import PipelineRound
from planner.pipelines import mode_program
from planner.sequences.mix import Lane, side_by_side
from planner.shards import Links, TaskCosts, cut_points, layer_graph, separable, untied
from profiles.codec import ALIGNMENT
from profiles.schema import Task
from profiles.units import show_bytes

Array = NDArray[np.int64]

_FINEST = 4  # shards of a stage
ORDER = "1f1b"


def bucket(tokens: int) -> int:
    """The next number of tokens that a microbatch of a plan may have at most."""
    return -(-max(1, tokens) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, eq=False)
class Asked:
    """lengths: the tokens of every sample. host_bytes: what the task may have there. done: steps
    that were trained before."""

    task: Task
    lengths: NDArray[np.uint32]
    kind: Kind
    host_bytes: int
    done: int = 0

    @cached_property
    def links(self) -> Links:
        return Links.of(self.kind.device)

    @cached_property
    def apart(self) -> bool:
        """True if tied layers may lie in several shards."""
        return separable(self.task) is not None

    @cached_property
    def points(self) -> tuple[int, ...]:
        """The layers where shards may end."""
        return tuple(cut_points(layer_graph(untied(self.task) if self.apart else self.task)))

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    @cached_property
    def spread(self) -> float:
        """The sum of the squares of all lengths over the sum of all: a token attends to so many in
        the mean, times two."""
        whole = self.lengths.astype(np.float64)
        return float((whole * whole).sum() / whole.sum())

    @property
    def steps(self) -> range:
        """The steps that are to be planned."""
        return range(self.done, self.done + self.task.steps)

    def step(self, number: int) -> Array:
        """The tokens of the samples of a step."""
        first = number * self.task.batch
        return np.asarray(
            self.lengths[(first + np.arange(self.task.batch)) % len(self.lengths)], np.int64
        )

    @lru_cache(maxsize=1 << 10)  # noqa: B019 (lives as long as the process plans)
    def costs(
        self, tokens: int, squares: int | None = None, used: int | None = None, count: int = 1
    ) -> TaskCosts:
        """The costs of each of so many microbatches of at most so many tokens. squares, used: what
        their times go by, by default as if they were full of usual sequences."""
        usual = round(tokens * min(tokens, self.spread)) if squares is None else squares
        task = costs_at(self.task, tokens, usual, used)
        return TaskCosts(task, tokens, self.apart, count=count)

    def most_tokens(self, depth: int, wanted: int, effort: Effort) -> int:
        """The most tokens, of so many that are wanted, of a microbatch that so many stages have
        memory for; 0 where there is none."""
        low, high = 0, bucket(wanted) // ALIGNMENT
        if self._fits(depth, high, effort):
            return high * ALIGNMENT
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(depth, middle, effort) else (low, middle)
        return low * ALIGNMENT

    def _fits(self, depth: int, units: int, effort: Effort) -> bool:
        need = self.least_bytes(depth, units * ALIGNMENT, effort)
        return need is not None and need <= self.kind.device_bytes

    def least_bytes(self, depth: int, tokens: int, effort: Effort) -> int | None:
        """The bytes of each of so many stages in a round that needs least; None where the model has
        too few layers, or the host too little memory."""
        costs = self.costs(tokens, count=depth)
        lanes = [Lane(depth, depth, costs)]
        strategy = side_by_side(lanes, self.links, self.points, ORDER, _FINEST)
        program = strategy and mode_program(strategy, self.links, 0, self.host_bytes)
        found = program.thrifty(effort) if program else None
        return PipelineRound(found[1], self.links).device_bytes if found else None

    def too_long(self, depths: Sequence[int], effort: Effort) -> Infeasible:
        """The error for a sample that no pipeline of these depths has memory for."""
        offered, longest = self.kind.device_bytes, self.longest
        needs = [self.least_bytes(depth, bucket(longest), effort) for depth in depths]
        known = [need for need in needs if need is not None]
        if not known:
            return Infeasible(
                f"{self.task.name}: its longest sample has {longest} tokens, and the host has no "
                "memory for what the devices do not hold of it; raise --host-memory",
                resource="other",
            )
        need = min(known) + self.kind.taken_bytes
        return Infeasible(
            f"{self.task.name}: its longest sample has {longest} tokens, for which each device of "
            f"any layout needs {show_bytes(need)} ({need} bytes) but offers {show_bytes(offered)} "
            f"({offered} bytes); smallest --device-memory that would do: {need}",
            need,
        )
