"""A task with lengths on devices of one kind, and its costs at any number of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.inputs import DeviceGroup, Layout, OrderName, costs_at
from planner.packing.packing import How
from planner.packing.pipes import Curve
from planner.packing.samples import Samples, counted
from planner.shards import Links, ShardCost, TaskCosts, cut_points, separable_ties
from profiles.codec import ALIGNMENT
from profiles.curves import draws_of
from profiles.schema import Task

Array = NDArray[np.int64]
_BLOCK = 1 << 20  # samples that are looked at together
PACKINGS: tuple[How, ...] = ("balanced", "ffd", "fixed", "pad")


def bucket(tokens: int) -> int:
    """The next number of tokens that a microbatch of a plan may have at most."""
    return -(-max(1, tokens) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, eq=False)
class LengthsTask:
    """lengths: the tokens of every sample. host_bytes: what the task may have there. done: steps
    that were trained before. few: the steps that are to be planned, where not all are. held_out:
    the tokens of the samples of each evaluation, if any. devices: so many at once. layout: the one
    that is looked at, by default all; hows: the ways to pack that are; order: that of passes.
    """

    task: Task
    lengths: NDArray[np.uint32]
    kind: DeviceGroup
    host_bytes: int
    done: int = 0
    few: Sequence[int] = ()
    held_out: NDArray[np.uint32] | None = None
    devices: int = 1
    layout: Layout | None = None
    hows: tuple[How, ...] = PACKINGS
    order: OrderName = "auto"

    @cached_property
    def samples(self) -> Samples:
        """The samples of every step."""
        return Samples(self.lengths, self.task.batch)

    @cached_property
    def links(self) -> Links:
        return Links.of(self.kind.device)

    @cached_property
    def apart(self) -> bool:
        """True if tied layers may lie in several shards."""
        return separable_ties(self.task) is not None

    @cached_property
    def points(self) -> tuple[int, ...]:
        """The layers where shards may end."""
        return tuple(cut_points(self.task, apart=self.apart))

    @cached_property
    def counts(self) -> Array:
        """The number of samples of each length, in tokens, over all steps."""
        if not self.few:
            return counted(self.lengths)
        found, block = (
            np.zeros(int(self.lengths.max()) + 1, np.int64),
            max(1, _BLOCK // self.task.batch),
        )
        for begin in range(0, len(self.few), block):
            own = counted(np.concatenate([*map(self.step, self.few[begin : begin + block])]))
            found[: len(own)] += own
        return found

    @cached_property
    def due(self) -> Array:
        """The same of all steps of the task, as often as each sample comes."""
        return self.samples.due(self.done, self.task.steps)

    @cached_property
    def longest(self) -> int:
        """The tokens of the longest sample of its steps and of evaluations."""
        held = 0 if self.held_out is None else int(self.held_out.max())
        return max(int(self.counts.nonzero()[0][-1]), held)

    @cached_property
    def spread(self) -> float:
        """The sum of the squares of all lengths over the sum of all: a token attends to so many in
        the mean, times two."""
        tokens = self.counts * np.arange(len(self.counts), dtype=np.float64)
        return float((tokens * np.arange(len(tokens))).sum() / tokens.sum())

    @property
    def steps(self) -> Sequence[int]:
        """The steps that are to be planned."""
        return self.few or range(self.done, self.done + self.task.steps)

    def step(self, number: int) -> Array:
        """The tokens of the samples that come in a step."""
        return self.samples.of(number)

    def curves(self, most: int, us: Callable[[TaskCosts], Sequence[int]]) -> list[Curve]:
        """The curves of these times of microbatches of at most so many tokens."""
        given = (0, 1), (0, most), (most * most, most)
        times = (us(self.costs(most, *own)) for own in given)
        return [Curve.through(most, *own) for own in zip(*times, strict=True)]

    def token_draws(self, shards: Sequence[ShardCost]) -> tuple[int, ...]:
        """The random draws that each token adds to a forward of each shard; () where none does."""
        each = [draws_of(layer.costs) for layer in self.task.layers]
        found = tuple(sum(one[1] for one in each[s.first : s.end] if one) for s in shards)
        return found if any(found) else ()

    @lru_cache(maxsize=1 << 10)  # noqa: B019 (lives as long as the process plans)
    def costs(
        self, tokens: int, squares: int | None = None, used: int | None = None, count: int = 1
    ) -> TaskCosts:
        """The costs of each of so many microbatches of at most so many tokens. squares, used: what
        their times go by, by default as if they were full of usual sequences."""
        usual = round(tokens * min(tokens, self.spread)) if squares is None else squares
        task = costs_at(self.task, tokens, usual, used)
        return TaskCosts(task, tokens, self.apart, count=count)
