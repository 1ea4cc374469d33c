"""Where the search for one task begins: strategies that need no search, and the load programs that
lead to others. Both come for every microbatch size, with cuts from a ladder.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from planner.bounds import Terms, scratch_bytes
from planner.inputs import Limits
from planner.lowering import least_bytes
from planner.shards import (
    SCALARS_BYTES,
    Links,
    Mode,
    Place,
    Strategy,
    TaskCosts,
    Update,
    all_cuts,
    cut_points,
    even,
    ladder,
    microbatch_costs,
    nearest_mode,
)
from profiles.schema import Task

_STAYS = Mode("resident", "device")
_UPDATES: tuple[Update, ...] = ("host", "device-streamed")


@dataclass(frozen=True)
class Starts:
    """The starts for one task on one kind of device. apart: tied layers may lie in several shards.
    host_bytes: what the task may have on the host. cast: the host makes parameters from masters."""

    task: Task
    links: Links
    device_bytes: int
    apart: bool
    host_bytes: int
    cast: bool

    @cached_property
    def points(self) -> list[int]:
        """The layers before which the task may be cut, and its end."""
        return cut_points(self.task, apart=self.apart)

    @cached_property
    def sizes(self) -> list[TaskCosts]:
        """The task's costs at every microbatch size."""
        return microbatch_costs(self.task, apart=self.apart, cast=self.cast)

    def simple(self, costs: TaskCosts, limits: Limits) -> Iterator[Strategy]:
        """Everything streamed, and everything in one shard that stays."""
        few = list(all_cuts(self.points)) if len(self.points) <= limits.every_cut_points else []
        for cuts in dict.fromkeys([*self.ladder(costs), *few]):
            yield from self.streamed(costs, cuts)
        yield self.whole(costs)

    def whole(self, costs: TaskCosts) -> Strategy:
        """Plain training: one shard that stays."""
        cuts = (0, len(costs.layers))
        stays = nearest_mode(costs.shard(*cuts), _STAYS, Place(True, True, False))
        return Strategy(costs, cuts, (stays,), 0, lumped=True)

    def streamed(self, costs: TaskCosts, cuts: tuple[int, ...]) -> Iterator[Strategy]:
        """Everything streamed, boundaries kept or spilled, or of one microbatch at a time, updates
        on the host; where that has no room for gradients, also with updates on the device."""
        last = len(cuts) - 2
        ways = [(last, False), (last, True)]
        if last and costs.microbatches > 1:
            ways.append((0, False))  # parameters stay for a round, boundaries for a microbatch
        for block, spilled in ways:
            for update in _UPDATES:
                mode = Mode(update=update, spilled=spilled)
                modes = tuple(
                    nearest_mode(costs.shard(a, b), mode, Place(not k, k == last, block < last))
                    for k, (a, b) in enumerate(pairwise(cuts))
                )
                strategy = Strategy(costs, cuts, modes, block, lumped=True)
                yield strategy
                if least_bytes(strategy) <= self.host_bytes:
                    break

    def ladder(self, costs: TaskCosts) -> Iterable[tuple[int, ...]]:
        """The cuts of the ladder, each once: the finest one first."""
        more_us = 3 * self.links.h2d.latency_us + 100  # about what a shard costs for its launches
        return dict.fromkeys(ladder(costs, self.points, more_us))

    def programs(self, costs: TaskCosts, limits: Limits) -> Iterator[Terms]:
        """The load program for a ladder of sizes of a shard; for few layers, for all shards."""
        if len(self.points) <= limits.every_cut_points:
            every = all_cuts(self.points)
        else:
            items = self._items(limits.search_items)
            lengths = sorted({max(1.0, len(items) / shards) for shards in limits.search_shards})
            every = (even(costs, items, per_shard) for per_shard in lengths)
        packs = self.links.d2d and any(cost.offload_bytes for cost in costs.costs)
        for cuts in dict.fromkeys(every):
            for offload in (False, True) if packs else (False,):
                yield self.program(costs, cuts, offload)

    def program(self, costs: TaskCosts, cuts: Sequence[int], offload: bool) -> Terms:
        """The load program of these cuts. offload: activations may wait on the host."""
        items = tuple(pairwise(cuts))
        return Terms(
            costs,
            items,
            self.links.h2d_both.bytes_per_s,
            self.links.d2h_both.bytes_per_s,
            self.device_bytes - costs.fixed_bytes - SCALARS_BYTES,
            self.links,
            plan=True,
            offload=offload,
            host_bytes=scratch_bytes(costs, items, self.host_bytes),
        )

    def _items(self, most: int) -> list[tuple[int, int]]:
        """The finest pieces, neighbours taken together where there are more than so many."""
        pieces = list(pairwise(self.points))
        each = -(-len(pieces) // most)
        return [
            (pieces[i][0], pieces[min(i + each, len(pieces)) - 1][1])
            for i in range(0, len(pieces), each)
        ]
