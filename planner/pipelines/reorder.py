"""A round's order made better, with the modes that it has and the memory that it leaves."""

from collections.abc import Iterator
from dataclasses import replace

from planner.lowering import PipelineRound, separable, whole
from planner.orders import Order, Pipeline, improved, peaks, searched
from planner.pipelines.delays import pass_costs

SEARCHED = "searched"  # the name of such an order
_LEAST = 1000  # times that a search from places alone times all passes, at least


def reordered(made: PipelineRound, room: int, budget: int) -> PipelineRound | None:
    """The shortest round with another order that fits, if it is shorter; found by timing so many
    passes."""
    strategy = made.strategy
    found = [
        PipelineRound(replace(strategy, order=order, named=SEARCHED), made.links)
        for order in _orders(made, room, budget)
    ]
    shorter = [one for one in found if one.device_bytes <= room and one.period_us < made.period_us]
    return min(shorter, key=lambda one: one.period_us, default=None)


def _orders(made: PipelineRound, room: int, budget: int) -> Iterator[Order]:
    """By exchanges in the order that it has, and, if it is short, from its places alone."""
    strategy = made.strategy
    shards, modes, count = strategy.shards, strategy.modes, strategy.costs.microbatches
    costs = pass_costs(shards, modes, strategy.halved, made.links)
    pipeline = Pipeline.alike(costs, strategy.devices, count)
    used = zip(peaks(pipeline, strategy.order), made.memory, strict=True)
    limits = tuple(peak + room - one.slab_bytes - one.reserve_bytes for peak, one in used)
    yield improved(replace(pipeline, limits=limits), strategy.order, budget // 4)
    if _LEAST * sum(map(len, strategy.order)) > budget:
        return
    halved = frozenset(k for k in separable(shards) if modes[k].params != "streamed")
    costs = pass_costs(shards, modes, halved, made.links)
    pipeline = replace(Pipeline.alike(costs, strategy.devices, count), limits=limits)
    places = tuple(tuple(sorted(devices)) for devices in strategy.replicas)
    order = searched(pipeline, places, budget, split=bool(halved))
    yield whole(order, strategy.last, halved)
