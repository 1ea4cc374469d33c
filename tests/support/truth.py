"""A true profile, wrong ones made from it, and runs of their plans that go as the truth says."""

import random
from collections.abc import Callable

from msgspec.structs import asdict, replace
from support import synthetic, timetables
from support.retime import retimed

from plans import timing
from plans.checker.capacity import value_bytes
from plans.runlog import RunLog
from plans.schema import Op, Plan, Shard
from profiles.schema import Device, Layer, LayerCost, Link, Profile, Rate, Time


def _times(value: Time, factor: float) -> Time:
    us = round(value.median_us * factor)
    return Time(us, us, us, 1)


def wronged(
    true: Profile,
    *,
    compute: Callable[[int], float] = lambda layer: 1.0,
    link: float = 1.0,
    update: float = 1.0,
) -> Profile:
    """The profile with times of layers, rates of h2d and d2h, and updates multiplied."""

    def layer(index: int, of: Layer) -> Layer:
        by = compute(index)
        costs = []
        for cost in of.costs:
            times = {name: us for name, us in asdict(cost).items() if isinstance(us, Time)}
            costs.append(replace(cost, **{name: _times(us, by) for name, us in times.items()}))
        device, host = _times(of.update_device, update), _times(of.update_host, update)
        return replace(of, costs=tuple(costs), update_device=device, update_host=host)

    def rate(of: Rate) -> Rate:
        return Rate(round(of.bytes_per_s * link), of.latency_us)

    device = true.machine.devices[0]
    links = tuple(
        Link(of.kind, rate(of.alone), rate(of.both)) if of.kind in ("h2d", "d2h") else of
        for of in device.links
    )
    machine = replace(true.machine, devices=(replace(device, links=links),))
    tasks = tuple(
        replace(task, layers=tuple(layer(i, x) for i, x in enumerate(task.layers)))
        for task in true.tasks
    )
    return replace(true, machine=machine, tasks=tasks)


def truth(seed: int = 0, usable_bytes: int = 12 << 20) -> Profile:
    """A chain of twelve layers of a MiB or so each, on a device that cannot hold them."""
    task = synthetic.task("t", layers=12, seed=seed, steps=40, forward_us=2_000)
    return synthetic.profile(task, usable_bytes=usable_bytes)


def as_run(plan: Plan, believed: Profile, true: Profile) -> Plan:
    """`plan`, built from `believed`, with the times of a run where `true` is right."""

    def actual(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            replace(op, end_us=op.start_us + true_us(op, plan, believed, true)) for op in ops
        )

    programs = tuple(
        replace(p, enter=actual(p.enter), round=actual(p.round), leave=actual(p.leave))
        for p in plan.programs
    )
    return retimed(replace(plan, programs=programs))


def true_us(op: Op, plan: Plan, believed: Profile, true: Profile) -> int:
    """What was predicted, less what the op's layers or bytes cost as believed, plus the truth."""
    return op.end_us - op.start_us - _known_us(op, plan, believed) + _known_us(op, plan, true)


def _known_us(op: Op, plan: Plan, profile: Profile) -> int:
    name = op.name
    task = next(task for task in plan.tasks if task.name == name.task)
    if name.kind in "PS":
        (role,) = op.writes
        return _copy_us(profile.machine.devices[0], op.stream, value_bytes(name, role, task))
    shard = task.shards[name.number]
    layers = next(t for t in profile.tasks if t.name == name.task).layers
    on_device = op.stream.endswith("compute")
    return sum(
        _layer_us(layer, name.kind, shard, task.microbatch, on_device)
        for layer in layers[shard.first_layer : shard.end_layer]
    )


def _copy_us(device: Device, stream: str, size: int) -> int:
    rate = next(link.both for link in device.links if stream.endswith(link.kind))
    return rate.latency_us + -(-size * 1_000_000 // rate.bytes_per_s)


def _layer_us(layer: Layer, kind: str, shard: Shard, microbatch: int, on_device: bool) -> int:
    if kind == "U":
        return (layer.update_device if on_device else layer.update_host).median_us
    cost: LayerCost = next(cost for cost in layer.costs if cost.microbatch == microbatch)
    if shard.activations == "recompute":
        return (cost.forward if kind == "F" else cost.recompute_backward).median_us
    graph = cost.backward.median_us
    return cost.recompute_backward.median_us - graph if kind == "F" else graph


def log_of(run: Plan, plan_sha256: str, *, noise: float = 0.0) -> RunLog:
    """The log of a run that went as `run` says, every duration off by up to `noise`;
    compute of the first round took twice as long under the memory meter."""
    rng = random.Random(1)
    log, ops = timetables.log(run, percent=100), []
    for one, record in zip(timing.timeline(run), log.ops, strict=True):
        slow = one.round == 0 and one.stream.endswith("compute")
        us = (one.end_us - one.start_us) * (1 + slow) * (1 + rng.uniform(-noise, noise))
        ops.append(replace(record, end_us=one.start_us + round(us), metered=slow))
    header = replace(log.header, plan_sha256=plan_sha256)
    return replace(log, header=header, ops=tuple(ops), steps=())
