"""Profiles changed to ask what if: other link rates, or only some of their microbatch sizes."""

from collections.abc import Mapping

from msgspec.structs import replace

from profiles.errors import FormatError
from profiles.schema import Device, Emulation, Link, Profile, Rate, Task
from profiles.units import LARGEST


def override(profile: Profile, *, h2d: int | None = None, d2h: int | None = None) -> Profile:
    """The profile with links of these rates alone, in bytes per second (None: as profiled).

    The rate with both directions busy, and the pace of an emulated device, change by the same
    factor, so that a run of the plan sees what was planned with.
    """
    rates = {kind: rate for kind, rate in (("h2d", h2d), ("d2h", d2h)) if rate}
    devices = tuple(_device(device, rates) for device in profile.machine.devices)
    return replace(profile, machine=replace(profile.machine, devices=devices))


def slower(link: Link, count: int) -> Link:
    """1/count of a link between host and device; what is no copy over it stays as it is."""
    return link if link.kind in ("d2d", "cast") else _link(link, (1, count))


def _device(device: Device, rates: dict[str, int]) -> Device:
    alone: dict[str, int] = {link.kind: link.alone.bytes_per_s for link in device.links}
    factors = {kind: (rate, alone[kind]) for kind, rate in rates.items()}
    return replace(
        device,
        links=tuple(_link(link, factors.get(link.kind)) for link in device.links),
        emulation=device.emulation and _emulation(device.emulation, factors),
    )


def _link(link: Link, factor: tuple[int, int] | None) -> Link:
    return replace(link, alone=_rate(link.alone, factor), both=_rate(link.both, factor))


def _rate(rate: Rate, factor: tuple[int, int] | None) -> Rate:
    return replace(rate, bytes_per_s=_scaled(rate.bytes_per_s, factor))


def _emulation(emulation: Emulation, factors: dict[str, tuple[int, int]]) -> Emulation:
    return replace(
        emulation,
        h2d_bytes_per_s=_scaled(emulation.h2d_bytes_per_s, factors.get("h2d")),
        d2h_bytes_per_s=_scaled(emulation.d2h_bytes_per_s, factors.get("d2h")),
    )


def _scaled(bytes_per_s: int, factor: tuple[int, int] | None) -> int:
    """The rate by a factor, given as a fraction."""
    over, under = factor or (1, 1)
    return min(max(1, bytes_per_s * over // under), LARGEST)


def only_microbatch(profile: Profile, size: int) -> Profile:
    """The profile as if only this microbatch size had been measured; FormatError if it was not."""
    return only_microbatches(profile, {task.name: size for task in profile.tasks})


def only_microbatches(profile: Profile, sizes: Mapping[str, int]) -> Profile:
    """The profile as if of these tasks only one microbatch size had been measured each; FormatError
    if it was not."""
    tasks = (
        _only(task, sizes[task.name]) if task.name in sizes else task for task in profile.tasks
    )
    return replace(profile, tasks=tuple(tasks))


def _only(task: Task, size: int) -> Task:
    measured = [batch.microbatch for batch in task.batches]
    if size not in measured:
        raise FormatError(
            f"{task.name}: microbatch {size} was not measured, only "
            f"{', '.join(map(str, measured))}; choose among these or profile again"
        )
    return replace(
        task,
        batches=tuple(batch for batch in task.batches if batch.microbatch == size),
        layers=tuple(
            replace(layer, costs=tuple(cost for cost in layer.costs if cost.microbatch == size))
            for layer in task.layers
        ),
    )
