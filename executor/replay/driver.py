"""Replay of a plan: opens what it runs on, lets a conductor replay it, says what came of it."""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from executor.devices import (
    Device,
    HostMemory,
    apply,
    default_source,
    host_memory,
    open_devices,
    ring_bytes,
)
from executor.errors import InterruptedRun, LogError, RunError, UsageError
from executor.numerics import MemoryMeter
from executor.optim import onepass
from executor.records import Kept, LogFile, Options, Recorder, Trace, checkpoint, kept, logfile
from executor.replay.conductor import Conductor
from executor.replay.moves import Traffic
from executor.shards import Cutter, HostStore, Saved, open_files, remove
from executor.workload import Task
from plans.disk import kept_bytes, moved
from plans.runlog import CheckpointRecord, DropRecord, StopRecord
from plans.schema import Plan
from profiles.codec import pretty, sha256

__all__ = ["Options", "Result", "run"]


@dataclass(frozen=True)
class Result:
    """dropped: the tasks that failed, by name; their models are in whatever state they were left.
    stopped: those that a rule ended, their states whole.
    losses per task and step, and when each task's last loss was known; the trained models and
    optimizer states are in `store`. Per device: peak_bytes, slab and transients with live graphs;
    slab_bytes, the end of the last byte of the slab that an op touched; late_allocations, how often
    torch asked the device for memory after the first rounds of a segment, which should be never.
    traffic: to the disk and back. val_losses: of each task's evaluations, by the steps done.
    warnings: of tasks that went on although their loss was no number, the first of each.
    troubles: what could not be written when all was trained, a line each."""

    losses: dict[str, list[float]]
    ended_us: dict[str, int]
    store: HostStore
    actual_us: int
    peak_bytes: tuple[int, ...]
    slab_bytes: tuple[int, ...]
    host_bytes: int
    late_allocations: tuple[int, ...]
    dropped: dict[str, DropRecord] = field(default_factory=dict)
    stopped: dict[str, StopRecord] = field(default_factory=dict)
    traffic: Traffic | None = None
    val_losses: dict[str, dict[int, float]] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    def model(self, task: str) -> nn.Module:
        """The trained model, its parameters views of the host store; what the store has no
        parameters of has some made from its masters now.

        Where tasks took turns in the store, the model is of use until another one is asked for.
        """
        return self.store.at_hand(task).whole()

    def optimizer_state(self, task: str) -> dict[str, dict[str, Any]]:
        """Each parameter's optimizer state by the model's own parameter name."""
        state = self.store.at_hand(task).optimizer_state()
        if self.traffic is None:
            return state
        return {n: {k: checkpoint.own(v) for k, v in kept.items()} for n, kept in state.items()}


def run(plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter) -> Result:
    """Train `tasks`, whose models `cut` takes apart, as the proven `plan` says. RunError names the
    op that failed.

    A log, if asked for, is complete whatever happens, unless the process is killed.
    """
    if plan.disk and options.disk is None:
        raise UsageError("the plan lets idle tasks wait on the disk; say where, --disk DIR")
    with (
        options.trace.alone() if options.trace else nullcontext(),
        kept.opened(options, plan.tasks) as checkpoints,
        logfile.opened(options.log, options.overwrite) as log,
    ):
        return _opened(plan, tasks, options, cut, _Files(log, checkpoints))


@dataclass(frozen=True)
class _Files:
    """The files that a run writes while it lasts, None where not asked for."""

    log: LogFile | None
    checkpoints: Kept | None


def _opened(
    plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter, out: _Files
) -> Result:
    apply(plan.numerics)
    devices = open_devices(plan.devices, _slabs(plan), casts=ring_bytes(plan) > 0)
    memory = host_memory(plan.devices)
    try:
        with _young():
            return _run(plan, tasks, options, cut, out, devices, memory)
    finally:
        for device in devices:
            device.close()
        memory.close()


def _run(
    plan: Plan,
    tasks: Sequence[Task],
    options: Options,
    cut: Cutter,
    out: _Files,
    devices: Sequence[Device],
    memory: HostMemory,
) -> Result:
    saved = checkpoint.load(options.resume, plan.tasks)
    files = open_files(options.disk or Path(), _files(plan)) if plan.disk else {}
    try:
        source = default_source(plan.devices[0].kind)
        store = HostStore(plan, tasks, memory, source, saved, cut, files)
        return _replay(plan, options, out, devices, store, saved)
    finally:
        remove(files)


def _replay(
    plan: Plan,
    options: Options,
    out: _Files,
    devices: Sequence[Device],
    store: HostStore,
    saved: Mapping[str, Saved],
) -> Result:
    for device in devices:  # replicas have the module buffers beside the plan's budget
        device.limit(sum(task.buffer_bytes for task in store.tasks.values()))
    _warm_up(plan)
    digest = options.plan_sha256 or sha256(pretty(plan))
    recorder = Recorder(plan, digest, out.log, _begun(plan, options.resume or Path(), saved))
    if out.checkpoints:
        out.checkpoints.clear()
    replay = Conductor(plan, store, devices, recorder, options, out.checkpoints)
    if options.trace:
        options.trace.begin()
    error = replay.execute()
    peaks = tuple(place.peak_bytes for place in replay.places)
    interrupted = replay.interrupted > 0
    actual_us, troubles = _close(
        recorder, options.trace, error, peaks, store.bytes, interrupted=interrupted
    )
    if interrupted:
        raise InterruptedRun("; ".join([error, *troubles]), replay.interrupted)
    if error:
        raise RunError("; ".join([error, *troubles]))
    losses = {task: [by[step] for step in sorted(by)] for task, by in recorder.losses.items()}
    slabs = tuple(place.slab_bytes for place in replay.places)
    late = tuple(place.late_allocations for place in replay.places)
    sizes = peaks, slabs, store.bytes, late
    ends = replay.dropped, replay.stopped, replay.traffic if plan.disk else None
    known = recorder.val_losses, recorder.warnings, troubles
    return Result(losses, recorder.ended_us, store, actual_us, *sizes, *ends, *known)


def _begun(plan: Plan, folder: Path, saved: Collection[str]) -> list[CheckpointRecord]:
    """The log's lines about tasks that go on from a checkpoint."""
    return [
        CheckpointRecord(t.name, t.done, str(checkpoint.path_of(folder, t.name, t.done)), 0)
        for t in plan.tasks
        if t.name in saved
    ]


def _close(
    recorder: Recorder,
    trace: Trace | None,
    error: str,
    peaks: tuple[int, ...],
    host_bytes: int,
    *,
    interrupted: bool,
) -> tuple[int, tuple[str, ...]]:
    """End what is written during a run; how long it took, and what could not be written: no
    reason to let go of what is trained."""
    troubles = []
    try:
        actual_us = recorder.close(error, peaks, host_bytes, interrupted=interrupted)
    except LogError as failure:
        actual_us = recorder.now()
        troubles.append(str(failure))
    try:
        if trace:
            trace.end()
    except RunError as failure:
        troubles.append(str(failure))
    return actual_us, tuple(troubles)


@contextmanager
def _young() -> Iterator[None]:
    """Let the garbage collector pass over what was there before: it stops every thread, and would
    for a tenth of a second each time it goes through all that torch brings along."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _files(plan: Plan) -> dict[str, int]:
    """Bytes of the file of every task that is ever on the disk."""
    ever = moved(plan)
    return {task.name: kept_bytes(task) for task in plan.tasks if task.name in ever}


def _slabs(plan: Plan) -> list[int]:
    """Bytes of each device's slab: the largest of the programs that run there."""
    slabs = [0] * len(plan.devices)
    for segment in plan.segments:
        for number, memory in zip(
            segment.devices, plan.program(segment.program).memory, strict=True
        ):
            slabs[number] = max(slabs[number], memory.slab_bytes)
    return slabs


def _warm_up(plan: Plan) -> None:
    """Take now what would be taken in the first ops: a second's worth of imports, a compiler."""
    if any(task.precision == "bf16" for task in plan.tasks):
        onepass.available()
    with MemoryMeter():
        torch.zeros(1)
