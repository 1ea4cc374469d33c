"""Profiles changed to ask what if: other link rates, or only some of their microbatch sizes, their
tasks, or their steps."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from profiles.errors import FormatError
from profiles.schema import Device, Link, Profile, Task
from profiles.units import LARGEST

Factor = tuple[int, int]  # a fraction


def override(profile: Profile, *, h2d: int | None = None, d2h: int | None = None) -> Profile:
    """The profile with links of these rates alone, in bytes per second (None: as profiled).

    The rate with both directions busy, and the pace of an emulated device, change by the same
    factor, so that a run of the plan sees what was planned with.
    """
    devices = tuple(_device(device, h2d, d2h) for device in profile.machine.devices)
    return replace(profile, machine=replace(profile.machine, devices=devices))


def _device(device: Device, h2d: int | None, d2h: int | None) -> Device:
    alone = {link.kind: link.alone.bytes_per_s for link in device.links}
    h2d_by = (h2d or alone["h2d"], alone["h2d"])
    d2h_by = (d2h or alone["d2h"], alone["d2h"])
    by = {"h2d": h2d_by, "d2h": d2h_by}
    pace = device.emulation
    if pace:
        there, back = _times(pace.h2d_bytes_per_s, h2d_by), _times(pace.d2h_bytes_per_s, d2h_by)
        pace = replace(pace, h2d_bytes_per_s=there, d2h_bytes_per_s=back)
    links = tuple(faster(link, by.get(link.kind, (1, 1))) for link in device.links)
    return replace(device, links=links, emulation=pace)


def faster(link: Link, by: Factor) -> Link:
    """A link of so many times the rates."""
    alone, both = (
        replace(rate, bytes_per_s=_times(rate.bytes_per_s, by)) for rate in (link.alone, link.both)
    )
    return replace(link, alone=alone, both=both)


def _times(bytes_per_s: int, by: Factor) -> int:
    over, under = by
    return min(max(1, bytes_per_s * over // under), LARGEST)


def narrowed(profile: Profile, only: Sequence[str], until: int | None) -> Profile:
    """The profile as if it had only these tasks (none named: all), which end after so many steps
    (None: as profiled); FormatError for one that it has not."""
    names = [task.name for task in profile.tasks]
    for name in only:
        if name not in names:
            raise FormatError(f"--only: there is no task {name!r}, only {', '.join(names)}")
    tasks = [task for task in profile.tasks if not only or task.name in only]
    return replace(
        profile, tasks=tuple(replace(t, steps=min(t.steps, until or t.steps)) for t in tasks)
    )


def only_microbatch(profile: Profile, size: int) -> Profile:
    """The profile as if only this microbatch size had been measured; FormatError if it was not."""
    return only_microbatches(profile, {task.name: size for task in profile.tasks})


def only_microbatches(profile: Profile, sizes: Mapping[str, int]) -> Profile:
    """The profile as if of these tasks only one microbatch size had been measured each (0: as
    profiled); FormatError if it was not."""
    tasks = (_only(task, sizes.get(task.name, 0)) for task in profile.tasks)
    return replace(profile, tasks=tuple(tasks))


def _only(task: Task, size: int) -> Task:
    if not size:
        return task
    if task.lengths:
        raise FormatError(
            f"{task.name}: its samples have lengths, with which --microbatch does not go; leave it "
            "out"
        )
    measured = [batch.microbatch for batch in task.batches]
    if size not in measured:
        raise FormatError(
            f"{task.name}: microbatch {size} was not measured, only "
            f"{', '.join(map(str, measured))}; choose among these or profile again; one that "
            "goes on --from RUN may have another by --microbatch free, and other last bits"
        )
    parts = replace(task.parts, asked=task.parts.kind == "whole" and size < task.batch)
    return replace(
        task,
        parts=parts,
        batches=tuple(batch for batch in task.batches if batch.microbatch == size),
        layers=tuple(
            replace(layer, costs=tuple(cost for cost in layer.costs if cost.microbatch == size))
            for layer in task.layers
        ),
    )
