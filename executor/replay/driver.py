"""Replay of a plan: opens files, devices and the host store, and lets a conductor replay it."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

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
from executor.records import Options, Recorder, checkpoint, kept, logfile
from executor.replay.conductor import Conductor
from executor.replay.result import Result
from executor.shards import Cutter, HostStore, StateFile, opened
from executor.workload import Task
from plans.disk import kept_bytes, moved
from plans.runlog import CheckpointRecord
from plans.schema import Plan
from profiles.codec import pretty, sha256

__all__ = ["Options", "Result", "run"]


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
        _machine(plan) as (devices, memory),
    ):
        saved = checkpoint.load(options.resume, plan.tasks)
        with _files(plan, options) as files:
            source = default_source(plan.devices[0].kind)
            store = HostStore(plan, tasks, memory, source, saved, cut, files)
            for device in devices:  # replicas have the module buffers beside the plan's budget
                device.limit(sum(task.buffer_bytes for task in store.tasks.values()))
            _warm_up(plan)
            digest = options.plan_sha256 or sha256(pretty(plan))
            recorder = Recorder(plan, digest, log, _begun(plan, options))
            if checkpoints:
                checkpoints.clear()
            replay = Conductor(plan, store, devices, recorder, options, checkpoints)
            return _replay(plan, options, replay, recorder, store)


def _replay(
    plan: Plan, options: Options, replay: Conductor, recorder: Recorder, store: HostStore
) -> Result:
    """Execute the plan and close the log; files that fail last cost nothing that is trained."""
    if options.trace:
        options.trace.begin()
    error = replay.execute()
    peaks = tuple(place.peak_bytes for place in replay.places)
    troubles = []
    try:
        recorder.close(error, peaks, store.bytes, interrupted=replay.interrupted > 0)
    except LogError as failure:
        troubles.append(str(failure))
    try:
        if options.trace:
            options.trace.end()
    except RunError as failure:
        troubles.append(str(failure))
    if replay.interrupted:
        raise InterruptedRun("; ".join([error, *troubles]), replay.interrupted)
    if error:
        raise RunError("; ".join([error, *troubles]))
    return Result(
        losses={task: [by[step] for step in sorted(by)] for task, by in recorder.losses.items()},
        ended_us=recorder.ended_us,
        store=store,
        actual_us=recorder.actual_us,
        peak_bytes=peaks,
        slab_bytes=tuple(place.slab_bytes for place in replay.places),
        host_bytes=store.bytes,
        late_allocations=tuple(place.late_allocations for place in replay.places),
        dropped=replay.dropped,
        stopped=replay.stopped,
        traffic=replay.traffic if plan.disk else None,
        val_losses=recorder.val_losses,
        warnings=recorder.warnings,
        troubles=tuple(troubles),
    )


@contextmanager
def _machine(plan: Plan) -> Iterator[tuple[Sequence[Device], HostMemory]]:
    """The plan's devices and the memory of the host store.

    The garbage collector passes over what was there before: it stops every thread, and would for
    a tenth of a second each time it goes through all that torch brings along."""
    apply(plan.numerics)
    devices = open_devices(plan.devices, _slabs(plan), casts=ring_bytes(plan) > 0)
    memory = host_memory(plan.devices)
    gc.freeze()
    try:
        yield devices, memory
    finally:
        gc.unfreeze()
        for device in devices:
            device.close()
        memory.close()


def _files(plan: Plan, options: Options) -> AbstractContextManager[dict[str, StateFile]]:
    """The file of every task that is ever on the disk, removed afterwards."""
    if not plan.disk or not options.disk:
        return nullcontext({})
    ever = moved(plan)
    sizes = {task.name: kept_bytes(task) for task in plan.tasks if task.name in ever}
    return opened(options.disk, sizes)


def _begun(plan: Plan, options: Options) -> list[CheckpointRecord]:
    """The log's lines about tasks that go on from a checkpoint."""
    folder = options.resume or Path()
    return [
        CheckpointRecord(t.name, t.done, str(checkpoint.path_of(folder, t.name, t.done)), 0)
        for t in plan.tasks
        if t.done
    ]


def _slabs(plan: Plan) -> list[int]:
    """Bytes of each device's slab: the largest of the programs that run there."""
    slabs = [0] * len(plan.devices)
    for segment in plan.segments:
        program = plan.program(segment.program)
        for number, memory in zip(segment.devices, program.memory, strict=True):
            slabs[number] = max(slabs[number], memory.slab_bytes)
    return slabs


def _warm_up(plan: Plan) -> None:
    """Take now what would be taken in the first ops: a second's worth of imports, a compiler."""
    if any(task.precision == "bf16" for task in plan.tasks):
        onepass.available()
    with MemoryMeter():
        torch.zeros(1)
