"""The spread of an op's times, from the 10th and 90th percentiles of its layers.

Layers are taken to vary independently: the squares of their distances from the median add up. A
plan's time may be corrected or of other hardware; the spread is as wide in proportion.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import NamedTuple

from plans.schema import Op, Program, Shard
from plans.schema import Task as Planned
from profiles.schema import Layer, LayerCost, Task, Time

_Pick = Callable[[Layer, LayerCost], Time | None]

_TIMES: dict[str, _Pick] = {
    "F": lambda _, cost: cost.forward,
    "N": lambda layer, _: layer.norm,
    "U compute": lambda layer, _: layer.update_device,
    "U host": lambda layer, _: layer.update_host,
    "recompute": lambda _, cost: cost.recompute_backward,
    "saved": lambda _, cost: cost.backward,
    "offload": lambda _, cost: cost.unpack_backward or cost.backward,
}


class Spread(NamedTuple):
    """One in ten of an op's times is shorter than its median by more than `low_us`, one in ten
    longer by more than `high_us`."""

    low_us: int
    high_us: int


STEADY = Spread(0, 0)


def spreads(
    program: Program, planned: Mapping[str, Planned], profiled: Mapping[str, Sequence[Task]]
) -> dict[str, Spread]:
    """The spread of each op of a round that has one; copies and sums have none, since profiles
    measure but their rate.

    planned: the tasks by name. profiled: the same, as measured for each of the program's devices.
    """
    found = {}
    costs: dict[tuple[str, int], Sequence[tuple[Layer, LayerCost]]] = {}
    for op in program.round:
        name, device = op.name, _device(op)
        if name.item != "s" or name.kind not in "FBIWUN":
            continue
        key = name.task, device
        task = planned[name.task]
        if key not in costs:
            costs[key] = _layers(profiled[name.task][device], task.microbatch)
        shard = task.shards[name.number]
        pick = _measured(name.kind, shard, op)
        own = [pick(*layer) for layer in costs[key][shard.first_layer : shard.end_layer]]
        spread = _together([time for time in own if time], op.end_us - op.start_us)
        if spread != STEADY:
            found[op.id] = spread
    return found


def _device(op: Op) -> int:
    """The device, by its number in the program, that an op computes on or for."""
    left, right = op.stream.split(".")
    return int(right if left == "host" else left)


def _layers(task: Task, microbatch: int) -> list[tuple[Layer, LayerCost]]:
    """The layers with their costs at a size of microbatch."""
    return [
        (layer, next(cost for cost in layer.costs if cost.microbatch == microbatch))
        for layer in task.layers
    ]


def _measured(kind: str, shard: Shard, op: Op) -> _Pick:
    """The layers' times that an op's is made of; the halves I and W vary as the whole does."""
    if kind == "U":
        kind += " host" if op.stream.startswith("host") else " compute"
    return _TIMES[kind if kind in _TIMES else shard.activations]


def _together(times: Sequence[Time], us: int) -> Spread:
    """The spread of an op of `us` µs that runs layers of these times one after the other."""
    median = max(sum(time.median_us for time in times), 1)
    low = isqrt(sum((time.median_us - time.p10_us) ** 2 for time in times))
    high = isqrt(sum((time.p90_us - time.median_us) ** 2 for time in times))
    return Spread(low * us // median, high * us // median)
