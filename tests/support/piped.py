"""Random ways to train a made-up task on several devices, and the plan of any such way."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from msgspec import structs
from support import synthetic
from support.apart import alone

from planner.errors import Infeasible
from planner.inputs import Layout
from planner.lowering import PipelineRound, PipelineStrategy, executable, splittable
from planner.orders import (
    NAMED,
    Cost,
    DeviceRows,
    InvalidOrder,
    Order,
    Pipeline,
    Places,
    ranked_schedule,
    ranking_of,
    share,
)
from planner.pipelines.modes import Choices
from planner.shards import Links, Mode, ShardCost, TaskCosts, cut_points
from plans.schema import Plan, Program
from profiles.codec import align
from profiles.schema import Layer, LayerCost, Task

LINKS = Links.of(synthetic.machine(usable_bytes=1).devices[0])
STAYS = Mode("resident", "device")


def halving(task: Task) -> Task:
    """The task with backwards that can be split, but for the first layer's; both parts together
    take less."""
    first, *others = task.layers
    return structs.replace(task, layers=(first, *map(_halving, others)))


def _halving(layer: Layer) -> Layer:
    return structs.replace(layer, costs=tuple(map(_halved, layer.costs)))


def _halved(cost: LayerCost) -> LayerCost:
    us = cost.backward.median_us
    return structs.replace(
        cost,
        backward_input=synthetic.time_us(us * 3 // 5),
        backward_weight=synthetic.time_us(us // 4),
        left_bytes=cost.saved_bytes // 2,
        kept_grad_bytes=cost.saved_bytes // 4,
        input_peak_bytes=cost.backward_peak_bytes + cost.saved_bytes // 4,
    )


def piped(
    task: Task,
    cuts: tuple[int, ...],
    places: Places,
    named: str,
    modes: Sequence[Mode] = (),
    *,
    microbatch: int = 1,
) -> PipelineStrategy:
    """The task in shards on these devices each, in an order that has a name; all in modes, or
    resident."""
    costs = TaskCosts(task, microbatch, apart=bool(task.tie_bytes))
    shards = [costs.shard(*pair) for pair in pairwise(cuts)]
    halves = splittable(shards) if named == "zero-bubble" else frozenset[int]()
    devices = 1 + max(max(own) for own in places)
    order = NAMED[named](_pipeline(shards, halves, devices, costs.microbatches), places)
    made = tuple(modes) or (STAYS,) * len(shards)
    order = executable(order, len(shards) - 1, halves)
    return PipelineStrategy(costs, cuts, made, order, Layout(((1,) * devices,)), named)


def _pipeline(
    shards: Sequence[ShardCost], halves: frozenset[int], devices: int, microbatches: int
) -> Pipeline:
    """As orders see it; a forward of the last shard is part of its backward."""
    last = len(shards) - 1
    passes = [
        Cost(
            forward=shard.graph_forward_us if k < last else 0,
            input=(shard.input_us if k in halves else shard.graph_backward_us) or 0,
            weight=(shard.weight_us or 0) if k in halves else 0,
            hop=30 if k else 0,
        )
        for k, shard in enumerate(shards)
    ]
    return Pipeline.alike(passes, devices, microbatches)


def drawn(rng: Random, least: int = 1, most: int = 4) -> PipelineStrategy:
    """Task, cuts, places of shards, order and modes, all drawn, on so many devices."""
    while True:
        try:
            return _drawn(rng, least, most)
        except (Infeasible, InvalidOrder):
            continue


def _drawn(rng: Random, least: int, most: int) -> PipelineStrategy:
    layers, microbatches, each = rng.randint(1, 8), rng.choice([1, 2, 3, 4, 6]), rng.choice([1, 2])
    task = _task(rng, layers, microbatches * each)
    costs = TaskCosts(task, rng.choice(task.batches).microbatch, apart=bool(task.ties))
    inner = cut_points(task, apart=True)[1:-1]
    cuts = (0, *sorted(rng.sample(inner, rng.randint(0, len(inner)))), layers)
    shards = [costs.shard(*pair) for pair in pairwise(cuts)]
    halves = splittable(shards) if rng.random() < 0.6 else frozenset[int]()
    devices = rng.randint(least, most)
    order = _order(rng, shards, halves, costs.microbatches, devices)
    order = executable(order, len(shards) - 1, halves)
    layout = Layout(((1,) * len(order),))
    found = PipelineStrategy(costs, cuts, (STAYS,) * len(shards), order, layout, "drawn")
    choices = Choices(found, LINKS)
    modes = tuple(rng.choice(choices.modes(k)) for k in range(len(shards)))
    tight = rng.random() < 0.3
    return PipelineStrategy(costs, cuts, modes, order, layout, "drawn", tight=tight)


def _task(rng: Random, layers: int, batch: int) -> Task:
    """With norms, layers without gradients, backwards that can be split and ties, as drawn."""
    made = synthetic.task(
        "a",
        layers=layers,
        batch=batch,
        seed=rng.randint(0, 99),
        param_bytes=rng.choice([1_000, 1 << 18]),
        boundary_bytes=rng.choice([1 << 10, 1 << 16]),
        states=rng.choice([0, 1, 2]),
        norms=rng.random() < 0.4,
    )
    if rng.random() < 0.7:
        made = halving(made)
    tied = sorted(rng.sample(range(layers), min(layers, rng.choice([0, 0, 2, 3]))))
    own = list(made.layers)
    for at in range(layers - 1):
        if at not in tied and rng.random() < 0.15:
            own[at] = structs.replace(own[at], grad_bytes=0, state_bytes=0)
    made = structs.replace(made, layers=tuple(own))
    if len(tied) < 2:
        return made
    size = align(own[tied[0]].grad_bytes // 2)
    return structs.replace(made, ties=(tuple(tied),), tie_bytes=(size,))


def _order(
    rng: Random,
    shards: Sequence[ShardCost],
    halves: frozenset[int],
    microbatches: int,
    devices: int,
) -> Order:
    """One that has a name, or a list schedule of microbatches on any devices of each shard."""
    pipeline = _pipeline(shards, halves, devices, microbatches)
    places = [tuple(sorted(rng.sample(range(devices), rng.randint(1, devices)))) for _ in shards]
    named = rng.choice([*NAMED, "", ""])
    if named:
        return NAMED[named](pipeline, tuple(places))
    rows: DeviceRows = tuple(
        tuple(rng.choices(own, k=microbatches) if rng.random() < 0.5 else share(microbatches, own))
        for own in places
    )
    return ranked_schedule(pipeline, rows, ranking_of(pipeline, split=bool(halves)))[1]


def planned(strategy: PipelineStrategy, other: Program | None = None, room: int = 0) -> Plan:
    """Its plan, or with another program, on devices just as large as its round says, where values
    live longer in so much room; nothing is proven yet."""
    made = PipelineRound(strategy, LINKS, room)
    program, task = other or made.program(), strategy.costs.task
    problem = synthetic.problem(task, usable_bytes=made.device_bytes, devices=strategy.devices)
    return alone(problem, strategy, program)
