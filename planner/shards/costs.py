"""The one cost model: from a profile's layers to what any shard, copy and update costs.

shard i..j-1      forward_us  = sum of forward medians
                  backward_us = sum of recompute+backward medians
with a graph      a forward that keeps or packs one takes what recomputation took:
                  recompute+backward less backward; packing copies its bytes inside the device
split backward    way: only its first part; least: both parts, or the whole where that is shorter
transients        forward: the largest layer peak plus the input it is given inside the shard
                  backward: while layer l runs, what earlier layers saved, its own peak, and
                  the gradient of its output; forward with a graph: the same
                  backward alone, and either half when packed: the largest layer peak plus the
                  boundary inside the shard that it was given, or whose gradient it is given
                  first part of a backward: while layer l runs, what earlier layers saved, its own
                  peak, the gradient of its output, and of later layers what they saved, since
                  their graphs stay, and the gradients kept; with a graph: as backward alone, and
                  all gradients kept
                  update: what it takes, and one layer's state, which the first one makes anew
                  norms of gradients: the most that any layer's take
                  with tied weights: gradients of those until all are there
copy of n bytes   latency + n / rate
prefetch that     casts n bytes of parameters from masters: the longer of copy and cast, and the
                  latency of the other
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.errors import Infeasible
from planner.shards.shard_cost import Links, MicrobatchCost, ShardCost
from planner.shards.ties import Group, held_gradients, separable_ties
from profiles.codec import align
from profiles.schema import Layer, LayerCost, Task, Time

Array = NDArray[np.int64]


def _packing(cost: LayerCost) -> tuple[int, int]:
    """The times that packing adds to a forward with a graph, and to the backward."""
    if cost.pack_backward is None or cost.unpack_backward is None:
        return 0, 0
    both, alone = cost.recompute_backward.median_us, cost.backward.median_us
    alone = min(alone, both)
    unpack = max(0, cost.unpack_backward.median_us - alone)
    return max(0, cost.pack_backward.median_us - both - unpack), unpack


@dataclass(frozen=True, eq=False)
class TaskCosts:
    """One task at one microbatch size. apart: tied layers may lie in several shards (`ties`). cast:
    the host has no parameters of shards all of which are trained, but makes them from masters.
    count: of microbatches, where samples have lengths; None: as many as share the batch."""

    task: Task
    microbatch: int
    apart: bool = False
    cast: bool = False
    count: int | None = None

    @cached_property
    def microbatches(self) -> int:
        return self.task.batch // self.microbatch if self.count is None else self.count

    @property
    def noted(self) -> bool:
        """True if updates wait for the norms of all gradients."""
        return self.task.norm_bytes > 0

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.task.layers

    @cached_property
    def costs(self) -> tuple[LayerCost, ...]:
        """The layers' costs at this microbatch size."""
        return tuple(
            next(c for c in layer.costs if c.microbatch == self.microbatch)
            for layer in self.task.layers
        )

    @cached_property
    def least_us(self) -> int:
        """Compute time of a step in any case: a backward of every layer and microbatch, norms."""
        return self.microbatches * self.total("backward_us") + self.total("norm_us")

    @cached_property
    def batch_bytes(self) -> int:
        return next(b.batch_bytes for b in self.task.batches if b.microbatch == self.microbatch)

    @property
    def fixed_bytes(self) -> int:
        """Bytes on the device in any case: the batch, the layers' own buffers, norms; with ties
        apart what waits of every microbatch's gradients."""
        batches = self.microbatches * (self.batch_bytes + self.tie_bytes)
        return batches + self.total("buffer") + align(self.task.norm_bytes)

    @cached_property
    def group(self) -> Group | None:
        """The tied layers that are planned apart."""
        return separable_ties(self.task) if self.apart else None

    @property
    def tie_bytes(self) -> int:
        """Bytes of one microbatch's gradients of the parameters that these share."""
        return self.group.bytes if self.group else 0

    @cached_property
    def plannable(self) -> bool:
        """True if every layer draws as often each time and a batch need not stay whole, or there is
        but one microbatch.

        Otherwise microbatches cannot run shard-major with the random numbers of the plain loop.
        """
        if self.microbatches == 1:
            return True
        known = all(cost.rng_draws is not None for cost in self.costs)
        return known and not self.task.parts.together

    @cached_property
    def sums(self) -> dict[str, Array]:
        """Columns of the layers, each as sums of all layers below; those that are called like a
        field of `ShardCost` are just added up for it."""
        layers, costs = self.layers, self.costs
        whole = [cost.recompute_backward.median_us for cost in costs]
        alone = [min(cost.backward.median_us, us) for cost, us in zip(costs, whole, strict=True)]
        way, least = zip(*map(_split, costs), strict=True)
        columns = {
            "param_bytes": [layer.param_bytes for layer in layers],
            "grad_bytes": [layer.grad_bytes for layer in layers],
            "state_bytes": [layer.state_bytes for layer in layers],
            "update_device_us": [layer.update_device.median_us for layer in layers],
            "update_host_us": [layer.update_host.median_us for layer in layers],
            "norm_us": [layer.norm.median_us if layer.norm else 0 for layer in layers],
            "forward_us": [cost.forward.median_us for cost in costs],
            "backward_us": whole,
            "graph_forward_us": [both - us for both, us in zip(whole, alone, strict=True)],
            "graph_backward_us": alone,
            "saved": [cost.saved_bytes for cost in costs],
            "update_peak": [layer.update_peak_bytes for layer in layers],
            "draws": [cost.rng_draws or 0 for cost in costs],
            "offload": [cost.offload_bytes or 0 for cost in costs],
            "pack": [_packing(cost)[0] for cost in costs],
            "unpack": [_packing(cost)[1] for cost in costs],
            "tied": held_gradients(self.task, self.group),
            "buffer": [layer.buffer_bytes for layer in layers],
            "input": [_us(cost.backward_input) for cost in costs],
            "weight": [_us(cost.backward_weight) for cost in costs],
            "left": [cost.left_bytes or 0 for cost in costs],
            "kept_grad_bytes": [cost.kept_grad_bytes or 0 for cost in costs],
            "way": [*way],
            "least": [*least],
        }
        every = {name: np.array([0, *values], np.int64) for name, values in columns.items()}
        return {name: np.cumsum(values) for name, values in every.items()}

    @cached_property
    def peaks(self) -> dict[str, Array]:
        """Transients per layer, in bytes: at the end of a shard, and inside one."""
        costs, saved = self.costs, self.sums["saved"][:-1]
        backward = np.array([c.backward_peak_bytes for c in costs], np.int64)
        out = np.array([c.out_bytes for c in costs], np.int64)
        forward = np.array([c.forward_peak_bytes for c in costs], np.int64)
        given = np.array([c.in_bytes for c in costs], np.int64)
        first = np.array([c.input_peak_bytes or 0 for c in costs], np.int64)
        first += saved - self.sums["saved"][1:] - self.sums["kept_grad_bytes"][1:]
        return {
            "forward": forward,
            "forward_inner": forward + given,
            "backward": saved + backward,
            "backward_inner": saved + backward + out,
            "graph": backward + np.maximum(out, given),
            "input": first,  # less what all layers up to it save and keep
            "input_inner": first + out,
        }

    def cut(self, points: Sequence[int]) -> MicrobatchCost:
        """The costs of a microbatch through shards that end at these points, from 0 on."""
        shards = tuple(self.shard(first, end) for first, end in pairwise(points))
        return MicrobatchCost(shards, self.batch_bytes, self.tie_bytes)

    def total(self, what: str, first: int = 0, end: int | None = None) -> int:
        """Sum of a column over layers first..end-1."""
        sums = self.sums[what]
        return int(sums[len(self.layers) if end is None else end] - sums[first])

    def backward_transient(self, first: int, end: int) -> int:
        """Peak beside the slab while the shard recomputes and runs backward."""
        return self._most("backward", first, end) - int(self.sums["saved"][first])

    def input_transient(self, first: int, end: int) -> int:
        """The same where only the first part of a backward runs."""
        stays = int(self.sums["saved"][end] + self.sums["kept_grad_bytes"][end])
        return self._most("input", first, end) + stays - int(self.sums["saved"][first])

    def _most(self, what: str, first: int, end: int) -> int:
        """The largest of the layers' peaks, with the gradients of tied parameters."""
        inner, last = self.peaks[f"{what}_inner"][first : end - 1], self.peaks[what][end - 1]
        return int(inner.max(initial=last)) + self.total("tied", first, end)

    def forward_transient(self, first: int, end: int) -> int:
        peaks = self.peaks
        inner = int(peaks["forward_inner"][first + 1 : end].max(initial=0))
        return max(int(peaks["forward"][first]), inner)

    def graph_transient(self, first: int, end: int) -> int:
        """Peak of a backward alone, or of either half of an offloading shard."""
        return int(self.peaks["graph"][first:end].max()) + self.total("tied", first, end)

    @lru_cache(maxsize=1 << 14)  # noqa: B019 (costs live as long as the process plans)
    def shard(self, first: int, end: int) -> ShardCost:
        """The costs of layers first..end-1 as one shard."""
        costs, layers = self.costs[first:end], self.layers[first:end]
        known = all(cost.rng_draws is not None for cost in costs)
        packed = all(cost.offload_bytes is not None for cost in costs)
        timed = all(cost.pack_backward is not None for cost in costs)
        splits = all(cost.left_bytes is not None for cost in costs)
        fields = [name for name in self.sums if name.endswith(("_bytes", "_us"))]
        sums = {name: self.total(name, first, end) for name in fields}
        param, masters = sums["param_bytes"], sums["state_bytes"]
        trained = 0 < param == sums["grad_bytes"] and masters >= param
        return ShardCost(
            first=first,
            end=end,
            in_bytes=self.costs[first].in_bytes if first else 0,
            rng_draws=self.total("draws", first, end) if known else None,
            saved_bytes=align(self.total("saved", first, end)),
            offload_bytes=self.total("offload", first, end) if packed else None,
            pack_us=self.total("pack", first, end) if timed else None,
            unpack_us=self.total("unpack", first, end) if timed else 0,
            forward_transient_bytes=self.forward_transient(first, end),
            backward_transient_bytes=self.backward_transient(first, end),
            graph_transient_bytes=self.graph_transient(first, end),
            update_transient_bytes=max(layer.state_bytes for layer in layers)
            + self.total("update_peak", first, end),
            norm_transient_bytes=max(layer.norm_peak_bytes for layer in layers),
            tie=self.group.part(first, end) if self.group else "",
            cast=self.cast and trained and self.task.precision == "bf16",
            in_turn=any(layer.in_turn for layer in layers),
            input_us=self.total("input", first, end) if splits else None,
            weight_us=self.total("weight", first, end) if splits else None,
            left_bytes=align(self.total("left", first, end)) if splits else None,
            input_transient_bytes=self.input_transient(first, end) if splits else 0,
            **sums,
        )


def _split(cost: LayerCost) -> tuple[int, int]:
    """The least time of a microbatch where backwards may be split: until the layer before has its
    gradient, and in all."""
    whole = cost.recompute_backward.median_us
    if cost.left_bytes is None:
        return whole, whole
    alone, first = min(cost.backward.median_us, whole), _us(cost.backward_input)
    both = first + _us(cost.backward_weight)
    return whole - alone + min(alone, first), whole - alone + min(alone, both)


def _us(time: Time | None) -> int:
    """The median; 0 where it was not measured."""
    return time.median_us if time else 0


def shape_of(task: Task) -> object:
    """Equal for tasks that cost the same, whatever they are called and however long they train; of
    those whose samples have lengths, if their steps and evaluations are the same."""
    bytes_ = task.tie_bytes, task.norm_bytes, task.precision
    judged = task.evaluation, task.evaluation_lengths
    steps = task.lengths and (task.lengths, task.steps, judged)
    return task.batch, task.batches, task.ties, *bytes_, task.layers, steps, task.parts


def stays_whole(task: Task) -> str:
    """Words behind those that there is no plan for a task, where its batch stays whole."""
    if not task.parts.together:
        return ""
    return (
        f"; its batch of {task.batch} stays whole ({task.parts.why}), unless --microbatch N, which "
        "changes what is trained, cuts it"
    )


def castable(task: Task, links: "Links") -> bool:
    """True if the host could make some of its parameters from masters, in a time that is known."""
    costs = TaskCosts(task, task.batches[0].microbatch, cast=True)
    return links.cast is not None and any(
        costs.shard(layer, layer + 1).cast for layer in range(len(task.layers))
    )


def microbatch_costs(task: Task, *, apart: bool = False, cast: bool = False) -> list[TaskCosts]:
    """Costs at every measured microbatch size that can be planned, the largest first."""
    found = [TaskCosts(task, cost.microbatch, apart, cast) for cost in task.batches[::-1]]
    planned = [costs for costs in found if costs.plannable]
    if not planned and task.parts.together:
        raise Infeasible(f"{task.name}: its whole batch was not measured{stays_whole(task)}")
    if not planned:
        raise Infeasible(
            f"{task.name}: its layers draw a varying number of random numbers, so it needs the "
            f"whole batch of {task.batch} as one microbatch, which was not measured"
        )
    return planned
