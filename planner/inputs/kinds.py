"""Devices of several kinds: one profile of the same tasks for each, made into one problem.

What a task is must be the same in all profiles; how long it takes, and how much memory its ops
take, may differ. What a plan says of a task holds on every kind: where one measured larger live
graphs than the other, the larger count; what cannot be done on one kind is done on none.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import structs

from planner.inputs.problem import DeviceGroup, Problem
from profiles.errors import FormatError
from profiles.schema import Disk, Layer, LayerCost, Profile, Rate, Task

T = TypeVar("T")
_TASK = (
    "steps",
    "batch",
    "optimizer",
    "precision",
    "ties",
    "tie_bytes",
    "norm_bytes",
    "evaluation",
    "parts",
)
_LAYER = ("param_bytes", "grad_bytes", "state_bytes", "buffer_bytes")
_COST = ("in_bytes", "out_bytes")


def across(
    profiles: Sequence[Profile],
    names: Sequence[str],
    *,
    devices: Sequence[int],
    device_bytes: Sequence[int | None],
    host_bytes: int | None,
) -> Problem:
    """The profiles' tasks on so many devices like the first of each; of one profile as
    `Problem.of` has it.

    names: of the profiles, for messages. device_bytes: of each kind, None for what its profile
    offers. host_bytes: by default what every profile offers; so is the disk, of those that have
    one. FormatError for what is not the same in all profiles.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return Problem.of(
            first, devices=devices[0], device_bytes=device_bytes[0], host_bytes=host_bytes
        )
    for other, name in zip(profiles[1:], names[1:], strict=True):
        for what, mine, theirs in _differences(first, other):
            raise FormatError(
                f"{name}: {what} is {theirs}, in {names[0]} it is {mine}; profiles of one plan "
                "must be of the same workload, measured on different devices"
            )
    named = [{task.name: task for task in profile.tasks} for profile in profiles]
    every = [[tasks[task.name] for tasks in named] for task in first.tasks]
    level = zip(*(_level(tasks) for tasks in every), strict=True)
    kinds = tuple(
        DeviceGroup.of(f"k{number}", structs.replace(profile, tasks=tuple(tasks)), count, size)
        for number, (profile, tasks, count, size) in enumerate(
            zip(profiles, level, devices, device_bytes, strict=True)
        )
    )
    room = host_bytes or min(profile.machine.host.usable_bytes for profile in profiles)
    estimated = any(profile.estimated for profile in profiles)
    disk = _disk([profile.machine.host.disk for profile in profiles])
    return Problem(kinds, room, estimated, first.machine.numerics, disk=disk)


def _disk(profiled: Iterable[Disk | None]) -> Disk | None:
    """The one disk of all kinds of devices, as fast and as large as every profile that knows of it
    says; None where none does."""
    disks = [disk for disk in profiled if disk]
    if not disks:
        return None
    read, write = (
        Rate(min(rate.bytes_per_s for rate in rates), max(rate.latency_us for rate in rates))
        for rates in ([disk.read for disk in disks], [disk.write for disk in disks])
    )
    return Disk(min(disk.usable_bytes for disk in disks), read, write)


def one_generator(problem: Problem) -> None:
    """FormatError for devices that do not draw the same random numbers."""
    kinds = sorted({kind.device.kind for kind in problem.kinds})
    if len(kinds) > 1:
        raise FormatError(
            f"a plan cannot have both {' and '.join(kinds)} devices: their generators draw "
            "different random numbers, so a task would not train the same on both; "
            "build a plan for each"
        )


def _differences(one: Profile, other: Profile) -> Iterator[tuple[str, object, object]]:
    """The facts in which two profiles differ, each with its two values; a size that only one of
    them measured is none."""
    mine, theirs = _facts(one), _facts(other)
    for what in mine:
        if what in theirs and mine[what] != theirs[what]:
            yield what, mine[what], theirs[what]


def _facts(profile: Profile) -> dict[str, object]:
    """All that profiles of one plan must agree on, by its name."""
    facts: dict[str, object] = {
        "the list of tasks": ", ".join(sorted(task.name for task in profile.tasks))
    }
    numerics = profile.machine.numerics
    facts |= {f"machine.numerics.{f}": getattr(numerics, f) for f in numerics.__struct_fields__}
    for task in profile.tasks:
        facts[f"{task.name}.workload.sha256"] = task.workload.sha256
        facts |= {f"{task.name}.{field}": getattr(task, field) for field in _TASK}
        facts[f"{task.name}: the number of layers"] = len(task.layers)
        for number, layer in enumerate(task.layers):
            where = f"{task.name}.layers[{number}]"
            facts |= {f"{where}.{field}": getattr(layer, field) for field in _LAYER}
            for cost in layer.costs:
                size = f"at microbatch {cost.microbatch}"
                facts |= {f"{where}.{field} {size}": getattr(cost, field) for field in _COST}
        for batch in task.batches:
            what = f"{task.name}: batch_bytes at microbatch {batch.microbatch}"
            facts[what] = batch.batch_bytes
    return facts


def _level(tasks: Sequence[Task]) -> list[Task]:
    """One task as profiled on several kinds, with what a plan says once for all of them."""
    layers = zip(*(task.layers for task in tasks), strict=True)
    levelled = zip(*(_level_layers(each) for each in layers), strict=True)
    return [
        structs.replace(task, layers=tuple(own), workload=tasks[0].workload)
        for task, own in zip(tasks, levelled, strict=True)
    ]


def _level_layers(layers: Sequence[Layer]) -> list[Layer]:
    by: dict[int, list[LayerCost]] = {}
    for layer in layers:
        for cost in layer.costs:
            by.setdefault(cost.microbatch, []).append(cost)
    return [
        structs.replace(layer, costs=tuple(_levelled(c, by[c.microbatch]) for c in layer.costs))
        for layer in layers
    ]


def _levelled(cost: LayerCost, every: Sequence[LayerCost]) -> LayerCost:
    saved = max(one.saved_bytes for one in every)
    return structs.replace(
        cost,
        saved_bytes=saved,
        backward_peak_bytes=max(cost.backward_peak_bytes, saved),
        rng_draws=_same([one.rng_draws for one in every]),
        offload_bytes=_same([one.offload_bytes for one in every]),
    )


def _same(values: Sequence[T | None]) -> T | None:
    """The value that all have, None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None
