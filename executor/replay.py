"""Replay of a plan: one thread per stream, and tickets between them. Nothing is decided here.

A ticket is (stream, count): each stream counts its completed ops, and whoever depends on the op at
position i waits until the count has passed i. Everything else about an op is in `ops`.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from executor import onepass
from executor.device import Device, HostMemory
from executor.errors import RunError, one_line
from executor.live import LiveTask, Place
from executor.machine import apply, default_source, host_memory, open_devices
from executor.meter import MemoryMeter
from executor.recorder import Recorder
from executor.rng import Guard
from executor.segment import SegmentRun, Setup
from executor.store import HostStore
from executor.streams import Halt
from executor.tracing import Trace
from executor.workload import Task
from plans.schema import Plan, Program
from profiles.codec import pretty, sha256
from profiles.errors import GantryError

_TICK_S = 0.1  # how often the main thread writes the log and looks for a stall
_GOODBYE_S = 1.0  # how long a failed run waits for its threads to stop


@dataclass(frozen=True)
class Options:
    """log: where the run log goes. serial_copies: no two ops of one device overlap.

    jitter: (seed, most µs) of a random delay before every op, to try other interleavings.
    stall_seconds: longest time without any op ending; None follows from the plan.
    plan_sha256: of the plan's file, for the log. trace: of torch's profiler.
    """

    log: Path | None = None
    serial_copies: bool = False
    jitter: tuple[int, int] | None = None
    stall_seconds: float | None = None
    plan_sha256: str | None = None
    trace: Trace | None = None


@dataclass(frozen=True)
class Result:
    """losses per task and step, and when each task's last loss was known; the trained models and
    optimizer states are in `store`. Per device: peak_bytes, slab and transients with live graphs;
    slab_bytes, the end of the last byte of the slab that an op touched; late_allocations, how often
    torch asked the device for memory after the first rounds of a segment, which should be never."""

    losses: dict[str, list[float]]
    ended_us: dict[str, int]
    store: HostStore
    actual_us: int
    peak_bytes: tuple[int, ...]
    slab_bytes: tuple[int, ...]
    host_bytes: int
    late_allocations: tuple[int, ...]

    def model(self, task: str) -> nn.Module:
        """The trained model, its parameters views of the host store."""
        return self.store.tasks[task].model

    def optimizer_state(self, task: str) -> dict[str, dict[str, Any]]:
        """Each parameter's optimizer state by the model's own parameter name."""
        return self.store.tasks[task].optimizer_state()


def run(plan: Plan, tasks: Sequence[Task], options: Options = Options()) -> Result:
    """Train `tasks` as the proven `plan` says. RunError names the op that failed.

    A log, if asked for, is complete whatever happens, unless the process is killed.
    """
    apply(plan.numerics)
    devices = open_devices(plan.devices, _slabs(plan))
    memory = host_memory(plan.devices)
    try:
        return _run(plan, tasks, options, devices, memory)
    finally:
        for device in devices:
            device.close()
        memory.close()


def _run(
    plan: Plan,
    tasks: Sequence[Task],
    options: Options,
    devices: Sequence[Device],
    memory: HostMemory,
) -> Result:
    store = HostStore(plan, tasks, memory, default_source(plan.devices[0].kind))
    for device in devices:  # replicas have the module buffers beside the plan's budget
        device.limit(sum(task.buffer_bytes for task in store.tasks.values()))
    _warm_up(plan)
    digest = options.plan_sha256 or sha256(pretty(plan))
    recorder = Recorder(plan, digest, options.log)
    replay = _Replay(plan, store, devices, recorder, options)
    if options.trace:
        options.trace.begin()
    error = replay.execute()
    if options.trace:
        options.trace.end()
    peaks, slabs = replay.peak_bytes(), replay.slab_bytes()
    actual_us = recorder.close(error, peaks, store.bytes)
    if error:
        raise RunError(error)
    store.settle()
    losses = {task: [by[step] for step in sorted(by)] for task, by in recorder.losses.items()}
    late = replay.late_allocations()
    return Result(losses, recorder.ended_us, store, actual_us, peaks, slabs, store.bytes, late)


def _slabs(plan: Plan) -> list[int]:
    """Bytes of each device's slab: the largest of the programs that run there."""
    programs = {program.name: program for program in plan.programs}
    slabs = [0] * len(plan.devices)
    for segment in plan.segments:
        for number, memory in zip(segment.devices, programs[segment.program].memory, strict=True):
            slabs[number] = max(slabs[number], memory.slab_bytes)
    return slabs


def _warm_up(plan: Plan) -> None:
    """Take now what would be taken in the first ops: a second's worth of imports, a compiler."""
    if any(task.precision == "bf16" for task in plan.tasks):
        onepass.available()
    with MemoryMeter():
        torch.zeros(1)


class _Replay:
    """The main thread's side: starts segments in order, writes the log, watches for a stall."""

    def __init__(
        self,
        plan: Plan,
        store: HostStore,
        devices: Sequence[Device],
        recorder: Recorder,
        options: Options,
    ) -> None:
        self._plan = plan
        self._recorder = recorder
        self._programs = {program.name: program for program in plan.programs}
        self._halt = Halt()
        self._places = [
            Place(i, device, Guard(device.source), len(devices) == 1 or not device.source.shared)
            for i, device in enumerate(devices)
        ]
        threads, source = max(device.threads for device in plan.devices), devices[0].source
        tasks = {n: LiveTask(t, threads, source, recorder.step) for n, t in store.tasks.items()}
        self._setup = Setup(
            self._places,
            tasks,
            store.flats,
            recorder,
            self._halt,
            options.jitter,
            options.trace,
            [threading.Lock() for _ in plan.devices] if options.serial_copies else None,
        )
        self._active: dict[int, SegmentRun] = {}
        self._stall_s = options.stall_seconds or _patience(plan)

    def execute(self) -> str:
        """Run all segments; what went wrong, or nothing."""
        try:
            self._segments()
        except KeyboardInterrupt:
            self._halt.fail(f"interrupted in {self._state()}")
        except Exception as error:
            self._halt.fail(str(error) if isinstance(error, GantryError) else one_line(error))
        finally:
            self._halt.stop()
            for task in self._setup.tasks.values():
                task.batches.stop()
            deadline = time.monotonic() + _GOODBYE_S
            for active in self._active.values():
                active.join(deadline)
        return self._halt.failure

    def peak_bytes(self) -> tuple[int, ...]:
        """Per device, the most that a program's slab and its measured transients took together."""
        return tuple(place.peak_bytes for place in self._places)

    def late_allocations(self) -> tuple[int, ...]:
        """Per device, how often torch asked it for memory after warm-up."""
        return tuple(place.late_allocations for place in self._places)

    def slab_bytes(self) -> tuple[int, ...]:
        """Per device, the end of the last byte that an op touched."""
        return tuple(place.slab_bytes for place in self._places)

    def _segments(self) -> None:
        """Start each segment when those before it on its devices and tasks have ended."""
        waiting = _predecessors(self._plan)
        first_steps = _first_steps(self._plan)
        seen: set[str] = set()
        ended: set[int] = set()
        while waiting or self._active:
            for index in [i for i, before in waiting.items() if before <= ended]:
                del waiting[index]
                program = self._program(index)
                segment = SegmentRun(
                    index,
                    program,
                    self._plan.segments[index],
                    first_steps[index],
                    self._setup,
                    metered=program.name not in seen,
                )
                seen.add(program.name)
                self._recorder.finished = time.perf_counter()
                self._active[index] = segment
                segment.start()
            self._halt.wait_for_news(_TICK_S)
            for task in self._setup.tasks.values():
                task.collect()
            self._recorder.drain()
            if self._setup.trace:
                self._setup.trace.tick()
            self._watch()
            if self._halt.failure:
                return
            ended |= {i for i, segment in self._active.items() if segment.ended}
            for index in ended & self._active.keys():
                self._active[index].forget()
            self._active = {i: s for i, s in self._active.items() if i not in ended}

    def _watch(self) -> None:
        silence = time.perf_counter() - self._recorder.finished
        if silence > self._stall_s:
            self._halt.fail(
                f"no op ended for {silence:.1f} s, the limit is {self._stall_s:g}: "
                f"{self._state()}; raise --stall-seconds if it is only slow"
            )

    def _state(self) -> str:
        """The running ops first, then who waits for what."""
        lines = [line for segment in self._active.values() for line in segment.states()]
        lines.sort(key=lambda line: " runs " not in line)
        return "; ".join(lines) or "no op"

    def _program(self, segment: int) -> Program:
        return self._programs[self._plan.segments[segment].program]


def _patience(plan: Plan) -> float:
    """Seconds: twenty times the longest op the plan predicts, a minute at least."""
    ops = [op for p in plan.programs for phase in (p.enter, p.round, p.leave) for op in phase]
    return max(60.0, 20 * max(op.end_us - op.start_us for op in ops) / 1e6)


def _predecessors(plan: Plan) -> dict[int, set[int]]:
    """For each segment the latest earlier one on each of its devices and tasks."""
    programs = {program.name: program for program in plan.programs}
    latest: dict[int | str, int] = {}
    out: dict[int, set[int]] = {}
    for index, segment in enumerate(plan.segments):
        keys: list[int | str] = [*segment.devices, *programs[segment.program].tasks]
        out[index] = {latest[key] for key in keys if key in latest}
        latest |= dict.fromkeys(keys, index)
    return out


def _first_steps(plan: Plan) -> list[dict[str, int]]:
    """For each segment, the step of each of its tasks that its round 0 trains."""
    programs = {program.name: program for program in plan.programs}
    done = {task.name: 0 for task in plan.tasks}
    out = []
    for segment in plan.segments:
        names = programs[segment.program].tasks
        out.append({name: done[name] for name in names})
        for name in names:
            done[name] += segment.rounds
    return out
