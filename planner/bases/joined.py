"""Tasks of one base as one task, for the search: its step is a step of each of them.

A layer of it has the base once and what each task trains, its microbatches are those of all tasks,
and its update is that of all. So whatever is known of one task holds for it: cuts, residency,
orders, pipelines, bounds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from planner.bases.groups import Base, Grouping, base_of
from planner.inputs import DeviceGroup, Problem
from profiles.codec import align
from profiles.schema import BatchCost, Layer, LayerCost, Task, Time


def joined_name(group: Sequence[str]) -> str:
    """The name of a group; no task has such a one, unless it is alone."""
    return group[0] + (f"+{len(group) - 1}" if len(group) > 1 else "")


def joined(problem: Problem, grouping: Grouping) -> Problem:
    """The problem with one task for each group. Bases that groups have in common lie in the host
    store once, so there is more room on the host; none of the groups waits on the disk."""
    firsts = {group[0]: group for group in grouping}
    others = {name for group in grouping for name in group[1:]}

    def tasks(kind: DeviceGroup) -> tuple[Task, ...]:
        own = {task.name: task for task in kind.tasks}
        return tuple(
            _one([own[member] for member in firsts[name]]) if name in firsts else task
            for name, task in own.items()
            if name not in others
        )

    names = {group[0]: joined_name(group) for group in grouping}
    seen, spare = set[Base](), 0
    for task in problem.tasks:
        if task.name in firsts:
            spare += sum(base_of(task).sizes) if base_of(task) in seen else 0
            seen.add(base_of(task))
    return replace(
        problem,
        kinds=tuple(replace(kind, tasks=tasks(kind)) for kind in problem.kinds),
        host_bytes=problem.host_bytes + spare,
        disk=None,
        done={names.get(name, name): steps for name, steps in problem.done.items()},
        microbatch={names.get(name, name): size for name, size in problem.microbatch.items()},
    )


def _one(tasks: Sequence[Task]) -> Task:
    """Tasks that differ in no more than what they train, as one."""
    first = tasks[0]
    batches = zip(*(task.batches for task in tasks), strict=True)
    return structs.replace(
        first,
        name=joined_name([task.name for task in tasks]),
        batch=sum(task.batch for task in tasks),
        batches=tuple(
            BatchCost(own[0].microbatch, max(one.batch_bytes for one in own)) for own in batches
        ),
        norm_bytes=sum(align(task.norm_bytes) for task in tasks),
        layers=tuple(map(_layer, zip(*(task.layers for task in tasks), strict=True))),
    )


def _layer(layers: Sequence[Layer]) -> Layer:
    """One layer with the base of the first, and what all of them have of their own."""
    first = layers[0]
    base, own = first.param_bytes - first.grad_bytes, sum(layer.grad_bytes for layer in layers)
    norms = [layer.norm for layer in layers if layer.norm]
    return structs.replace(
        first,
        param_bytes=base + own,
        grad_bytes=own,
        state_bytes=sum(layer.state_bytes for layer in layers),
        buffer_bytes=sum(layer.buffer_bytes for layer in layers),
        update_peak_bytes=max(layer.update_peak_bytes for layer in layers),
        update_device=_total(layer.update_device for layer in layers),
        update_host=_total(layer.update_host for layer in layers),
        norm=_total(norms) if norms else None,
        norm_peak_bytes=max(layer.norm_peak_bytes for layer in layers),
        in_turn=any(layer.in_turn for layer in layers),
        costs=tuple(map(_cost, zip(*(layer.costs for layer in layers), strict=True))),
    )


def _cost(costs: Sequence[LayerCost]) -> LayerCost:
    """One microbatch of any of them: bytes are the most, times the mean."""
    bytes_ = [name for name in LayerCost.__struct_fields__ if name.endswith("_bytes")]
    times = [
        name for name in LayerCost.__struct_fields__ if isinstance(getattr(costs[0], name), Time)
    ]
    changes: dict[str, object] = {}
    for name in bytes_ + times:
        own = [getattr(cost, name) for cost in costs]
        if None in own:
            changes[name] = None
        elif name in times:
            changes[name] = _mean(own)
        else:
            changes[name] = max(own)
    draws = [cost.rng_draws or 0 for cost in costs]
    return structs.replace(costs[0], rng_draws=max(draws), **changes)


def _total(times: Iterable[Time]) -> Time:
    """These one after the other."""
    own = list(times)
    p10, p50, p90 = (
        sum(us) for us in zip(*((t.p10_us, t.median_us, t.p90_us) for t in own), strict=True)
    )
    return Time(p50, p10, p90, min(time.samples for time in own))


def _mean(times: Sequence[Time]) -> Time:
    """Any of these."""
    whole, count = _total(times), len(times)
    return Time(
        -(-whole.median_us // count),
        whole.p10_us // count,
        -(-whole.p90_us // count),
        whole.samples,
    )
