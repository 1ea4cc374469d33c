"""A round's order and places made better, with the modes that it has and the memory it leaves."""

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import Infeasible
from planner.lowering import PipelineRound, PipelineStrategy, executable, splittable
from planner.orders import Order, Pipeline, improved, peaks, search_places, searched
from planner.pipelines.delays import pipeline_of

SEARCHED, PLACED = "searched", "placed"  # the names of such orders
_LEAST = 1000  # times that a search from places alone times all passes, at least


def reordered(made: PipelineRound, room: int, budget: int) -> PipelineRound | None:
    """The shortest round with another order that fits, if it is shorter; found by timing so many
    passes."""
    strategy = made.strategy
    found = [
        PipelineRound(replace(strategy, order=order, named=SEARCHED), made.links, made.room)
        for order in _orders(made, room, budget)
    ]
    shorter = [one for one in found if one.device_bytes <= room and one.period_us < made.period_us]
    return min(shorter, key=lambda one: one.period_us, default=None)


def moved(made: PipelineRound, room: int, budget: int) -> PipelineStrategy | None:
    """The strategy with shards on other devices, a few of them with microbatches on two; found by
    about as many passes in list schedules. Its modes are those of the round, so it may not fit."""
    strategy = made.strategy
    pipeline = _pipeline(made, room)
    schedules = budget // sum(map(len, strategy.order))
    alone = [k for k, shard in enumerate(strategy.shards) if shard.in_turn]
    split = bool(strategy.halved)
    try:
        found = search_places(
            pipeline,
            schedules,
            replicas=strategy.devices,
            alone=alone,
            split=split,
            orders=[strategy.order],
        )
    except Infeasible:
        return None
    order = executable(found.order, strategy.last, strategy.halved)
    return replace(strategy, order=order, named=PLACED)


def _pipeline(made: PipelineRound, room: int) -> Pipeline:
    """The passes of a round, and the memory that they may take."""
    strategy = made.strategy
    pipeline = pipeline_of(strategy, made.links)
    used = zip(peaks(pipeline, strategy.order), made.memory, strict=True)
    limits = tuple(peak + room - one.bytes for peak, one in used)
    return replace(pipeline, limits=limits)


def _orders(made: PipelineRound, room: int, budget: int) -> Iterator[Order]:
    """By exchanges in the order that it has, and, if it is short, from its places alone."""
    strategy, pipeline = made.strategy, _pipeline(made, room)
    shards, modes = strategy.shards, strategy.modes
    yield improved(pipeline, strategy.order, budget // 4)
    if _LEAST * sum(map(len, strategy.order)) > budget:
        return
    halved = frozenset(k for k in splittable(shards) if modes[k].params != "streamed")
    places = tuple(tuple(sorted(devices)) for devices in strategy.replicas)
    pipeline = replace(pipeline, costs=pipeline_of(strategy, made.links, halved).costs)
    order = searched(pipeline, places, budget, split=bool(halved))
    yield executable(order, strategy.last, halved)
