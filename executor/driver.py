"""A run: opens files, devices and the host store, and replays the plan on them."""

import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol

import torch
from msgspec import UNSET, UnsetType

from executor import late
from executor.conducting import Conductor, Led
from executor.devices import (
    Device,
    HostMemory,
    apply,
    default_source,
    expect_nodes,
    host_memory,
    open_devices,
    ring_bytes,
)
from executor.errors import InterruptedRun, LogError, RunError, UsageError
from executor.numerics import MemoryMeter
from executor.records import Earlier, Journal, Options, Result, checkpoint, drop_text, folder
from executor.replay import Recorder
from executor.shards import Cutter, HostStore, Shared
from executor.workload import Task, reading
from plans.order import waiting
from plans.part import Part
from plans.runlog import End
from plans.schema import Plan
from profiles import console

__all__ = ["Options", "Result", "run"]

_LOADED_S = time.perf_counter()  # all is imported
_SWITCH_S = 0.0002  # after which Python lets another thread go on; 5 ms by itself


class Others(Protocol):
    """The other processes of a run that this one leads. part: of the plan, or of what is left of
    it, its own; store: the host store of its node, which processes share."""

    part: Part
    store: Shared

    def joined(self) -> Led:
        """The others, once all of them have their devices and models, connected."""

    def limited(self) -> None:
        """All of them have the memory that the plan gives them."""


def run(
    plan: Plan,
    tasks: Sequence[Task],
    options: Options,
    cut: Cutter,
    others: Others | None = None,
) -> Result:
    """Train `tasks`, whose models `cut` takes apart, as the proven `plan` says. RunError names the
    op that failed. `others`: the processes that take part, if there are some.

    A log, if asked for, is complete whatever happens, unless the process is killed.
    """
    if others is None:
        expect_nodes(plan, 1)
    if waiting(plan) and options.folder is None:
        raise UsageError(
            "the plan lets idle tasks wait on the disk, in the run's folder; say where, -o runs/x"
        )
    begun_s, earlier = time.perf_counter(), options.earlier
    left = earlier.rest if earlier else plan
    part = others.part if others else Part.whole(left)
    with (
        folder.opened(options, plan) as files,
        reading(tasks),
        machine(part) as (devices, memory),
    ):
        saved = checkpoint.load(options.folder, left.tasks)
        source = default_source(part.kind)
        shared = others.store if others else None
        store = HostStore(part, tasks, memory, source, saved, cut, files, shared)
        built_s = time.perf_counter()
        warm_up()
        team = others.joined() if others else None
        limit(devices, store)
        if others:
            others.limited()
        recorder = _recorder(plan, earlier, 0 if others else UNSET)
        since_s = options.begun_s or _process_s()
        start_us = int((time.perf_counter() - since_s) * 1e6) if earlier else 0
        journal = Journal(plan, options, recorder, files, start_us)
        replay = Conductor(part, store, devices, recorder, options, journal, team)
        if earlier:
            replay.leave_out(earlier.over)
            if options.begun_s is None:
                console.note(_spent(begun_s, built_s))
        return _replay(plan, options, replay, recorder, journal, store)


def _process_s() -> float:
    """The time.perf_counter() when this process began."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.perf_counter()
    return ticks / os.sysconf("SC_CLK_TCK") - up_s


def _spent(begun_s: float, built_s: float) -> str:
    """The time before the first step, by what it went to, since this process began."""
    ends = (_process_s(), _LOADED_S, begun_s, built_s)
    parts = zip(("imports", "plan and processes", "models and states"), pairwise(ends), strict=True)
    told = ", ".join(f"{what} {end - start:.1f} s" for what, (start, end) in parts)
    now_s = time.perf_counter()
    return f"it goes on after {now_s - ends[0]:.1f} s: {told}, devices {now_s - built_s:.1f} s"


def _recorder(plan: Plan, earlier: Earlier | None, rank: int | UnsetType) -> Recorder:
    """The recorder of a run, whose times go on where those of an earlier start end."""
    if earlier is None:
        return Recorder(plan.tasks, rank=rank)
    recorder = Recorder(plan.tasks, time.perf_counter() - earlier.latest_us / 1e6, rank)
    recorder.recall(earlier.standing())
    return recorder


def _replay(
    plan: Plan,
    options: Options,
    replay: Conductor,
    recorder: Recorder,
    journal: Journal,
    store: HostStore,
) -> Result:
    """Execute the plan and close the log; files that fail last cost nothing that is trained."""
    gc.freeze()  # what was made since `machine`, too: a segment makes enough for a pass over it
    error = replay.execute()
    if replay.interrupted and options.folder:
        error += "; the same command goes on from the states that are kept"
    end = _end(error, replay, recorder, store, options.earlier)
    troubles = _closed(journal, end)
    if replay.interrupted:
        stepped_s = recorder.origin + max(recorder.ended_us.values(), default=0) / 1e6
        told, number = "; ".join([error, *troubles]), replay.interrupted
        raise InterruptedRun(told, number, stepped_s, whole=replay.whole)
    if error:
        raise RunError("; ".join([error, *troubles]))
    return Result(
        losses={task: [by[step] for step in sorted(by)] for task, by in recorder.losses.items()},
        ended_us=recorder.ended_us,
        store=store,
        actual_us=end.actual_us,
        peak_bytes=end.peak_bytes,
        host_bytes=store.bytes,
        late_allocations=tuple(late for _, late in replay.peaks),
        dropped=replay.dropped,
        stopped=replay.stopped,
        val_losses=recorder.val_losses,
        metrics=recorder.metrics,
        warnings=recorder.warnings,
        troubles=tuple(troubles),
    )


def _closed(journal: Journal, end: End) -> list[str]:
    """Close the log; what went wrong with it."""
    try:
        journal.close(end)
    except LogError as failure:
        return [str(failure)]
    return []


def _end(
    error: str, replay: Conductor, recorder: Recorder, store: HostStore, earlier: Earlier | None
) -> End:
    """The last line of the log."""
    peaks = tuple(peak for peak, _ in replay.peaks)
    status: Literal["ok", "partial", "failed", "interrupted"] = "ok"
    if error:
        status = "interrupted" if replay.interrupted else "failed"
    elif replay.dropped:
        status = "partial"
    dropped = "; ".join(f"dropped: {drop_text(record)}" for record in replay.dropped.values())
    return End(
        status=status,
        error=error or dropped,
        actual_us=recorder.now(),
        peak_bytes=tuple(map(max, peaks, (earlier and earlier.peaks) or peaks)),
        host_bytes=store.bytes,
    )


@contextmanager
def machine(part: Part) -> Iterator[tuple[Mapping[int, Device], HostMemory]]:
    """The devices of a process, by number, and the memory of the host store.

    The garbage collector passes over what was there before: it stops every thread, and would for
    a tenth of a second each time it goes through all that torch brings along. Beside GPUs a
    thread that asks for the interpreter gets it soon: one that launches asks for every op of a
    layer."""
    apply(part.plan.numerics)
    casts = ring_bytes(part.tasks, part.kind) > 0
    specs, slabs = list(part.devices.values()), list(part.slabs.values())
    first = part.node_devices.index(min(part.devices))
    opened = open_devices(specs, slabs, first=first, casts=casts)
    devices = dict(zip(part.devices, opened, strict=True))
    memory = host_memory(specs)
    gc.freeze()
    patience = sys.getswitchinterval()
    if part.kind != "cpu":
        sys.setswitchinterval(_SWITCH_S)
    try:
        with late.compiler():
            yield devices, memory
    finally:
        sys.setswitchinterval(patience)
        gc.unfreeze()
        for device in devices.values():
            device.close()
        memory.close()


def limit(devices: Mapping[int, Device], store: HostStore) -> None:
    """Let devices give no more than the plan says; RunError for one that has less. Connections are
    there already: they take memory as well. Replicas have module buffers beside the budget."""
    for device in devices.values():
        device.limit(sum(task.buffer_bytes for task in store.tasks.values()))


def warm_up() -> None:
    """Take now what would be taken in the first ops: a second's worth of imports."""
    with MemoryMeter():
        torch.zeros(1)
