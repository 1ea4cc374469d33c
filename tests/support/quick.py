"""From tasks to plans in a second or two: no times are taken, one microbatch size, a short search.
No test that plans this way looks at times.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from support.searches import SHORT, searching
from support.steady import steady, timeless

from executor.profiling import profiler
from executor.profiling import task as task_profiler
from executor.profiling.profiler import Options, profile
from executor.workload.task import Task
from planner import Infeasible, Problem, build
from planner.inputs import only_microbatch, parse_layout
from planner.inputs.layout import OrderName
from plans.schema import Plan
from profiles.schema import Emulation, Profile

ROOM = 1 << 26  # bytes of a device that every small model fits
_LINK = Emulation(h2d_bytes_per_s=10**9, d2h_bytes_per_s=10**9, latency_us=5)


@contextmanager
def quickly() -> Iterator[None]:
    """Profiles and builds are cheap: no times are taken, and commands search as short as `built`
    does."""
    with timeless(), searching(SHORT):
        yield


def measured(task: Task | Sequence[Task], microbatches: int | None) -> Profile:
    """The profile of a task, or of several, with the same time for everything: in this many
    microbatches only, as if they had been asked for, or in those of every size."""
    sizes, tasks = task_profiler.microbatch_sizes, [task] if isinstance(task, Task) else [*task]
    with (
        mock.patch.object(profiler, "load", return_value=(tasks, {t.name: "" for t in tasks})),
        mock.patch.object(
            task_profiler,
            "microbatch_sizes",
            lambda batch: [batch // microbatches] if microbatches else sizes(batch),
        ),
    ):
        options = Options(device_bytes=ROOM, emulation=_LINK, devices=1, samples=1)
        with timeless():
            made = steady(profile(f"tests:{tasks[0].name}", options))
    if microbatches is None or tasks[0].lengths is not None:
        return made
    return only_microbatch(made, made.tasks[0].batches[0].microbatch)


def built(
    made: Profile,
    device_bytes: int = ROOM,
    *,
    layout: str = "",
    order: OrderName = "auto",
    host_bytes: int | None = None,
) -> Plan:
    """A plan for devices of this size: one, or those of the layout. Infeasible where they are too
    small."""
    shape = parse_layout(layout) if layout else None
    devices = shape.devices if shape else 1
    asked = Problem.of(made, devices=devices, device_bytes=device_bytes, host_bytes=host_bytes)
    wanted = replace(asked, layout=shape, order=order)
    return build(wanted, profile_sha256="0" * 64, limits=SHORT)


def least(made: Profile, *, layout: str = "", order: OrderName = "auto") -> Plan:
    """The plan for the smallest devices that will do."""
    room = 1
    while True:
        try:
            return built(made, room, layout=layout, order=order)
        except Infeasible as error:
            room = error.smallest
