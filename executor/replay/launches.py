"""An op's launch, with everything that the run's options put around it when its job is made.

    run_of(work) ─▶ metered ─▶ watched ─▶ traced ─▶ between marks ─▶ locked ─▶ delayed

In the steady state of most runs an op is launched between two marks and nothing else.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from torch.profiler import record_function

from executor.devices import Mark, Queue, least_us, until
from executor.errors import RunError
from executor.numerics import no_draws
from executor.records import Options
from executor.replay.ops import Run, Work, run_of
from executor.replay.tickets import Launch, OnDone, Stream

UNPLANNED = (
    "draws random numbers although the plan knows of none; profile again, or make the layer draw "
    "the same number each time"
)


def launch_of(
    work: Work,
    options: Options,
    stream: Stream,
    locks: Sequence[threading.Lock],
    check: Callable[[], None],
) -> Launch:
    """The op's launch into its stream. `locks`: those of the devices it works on, if no two of
    their ops may overlap; `check` may raise to end a wait."""
    run, trace = run_of(work), options.trace
    if work.metered:
        run = _metered(work, run)
    if options.keep_going and _must_not_draw(work):  # a draw would fail tasks on other devices
        run = _within(run, lambda r: None if work.is_metered(r) else no_draws(UNPLANNED))
    if trace:
        run = _within(run, lambda _: record_function(work.op.id) if trace.active else None)
    least = least_us(work.place.device.spec, work.op)
    launch = _marked(run, stream.queue, least, check)
    if locks:
        launch = _alone(launch, locks, stream, check)
    if options.jitter:
        seed, most_us = options.jitter
        launch = _delayed(launch, random.Random(f"{seed} {work.op.id}"), most_us)
    return launch


def _metered(work: Work, run: Run) -> Run:
    """Measure the op's transients in round 0; RunError when they exceed the device's reserve."""
    name, place, memory = work.name, work.place, work.memory
    key = work.task.plan.name, name.number, name.index
    keeps = name.kind == "F" and work.activations != "recompute" and not work.evaluates
    makes, ends = key if keeps else None, key if name.kind == "B" else None

    def metered(round_index: int) -> OnDone | None:
        if round_index:
            return run(round_index)
        meter = place.meter
        with meter.op(makes, ends):
            on_done = run(round_index)
        place.peak_bytes = max(place.peak_bytes, memory.slab_bytes + meter.taken_bytes)
        if meter.taken_bytes > memory.reserve_bytes + place.device.slack_bytes:
            live = f", {meter.graph_bytes} of them in live graphs," if meter.graph_bytes else ""
            raise RunError(
                f"took {meter.taken_bytes} bytes beside its buffers{live} but its program reserves "
                f"{memory.reserve_bytes} on device {place.number}; "
                "profile again or lower the microbatch"
            )
        return on_done

    return metered


def _within(run: Run, context: Callable[[int], AbstractContextManager[object] | None]) -> Run:
    """Run within the round's context, if it has one."""

    def within(round_index: int) -> OnDone | None:
        around = context(round_index)
        if around is None:
            return run(round_index)
        with around:
            return run(round_index)

    return within


def _marked(run: Run, queue: Queue, least: int, check: Callable[[], None]) -> Launch:
    """Run between two marks, which are so many µs apart at least where compute is emulated."""
    begin, end = queue.begin, queue.end

    def launch(round_index: int) -> tuple[Mark, Mark, OnDone | None]:
        start = begin()
        on_done = run(round_index)
        return start, end(start, least, check), on_done

    return launch


def _alone(
    launch: Launch, locks: Sequence[threading.Lock], stream: Stream, check: Callable[[], None]
) -> Launch:
    """Hold the locks, always taken in the same order, while the op runs on the device."""

    def alone(round_index: int) -> tuple[Mark, Mark, OnDone | None]:
        running = stream.now
        stream.now = running and ("waits for ", running[1], round_index, "its device")
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            stream.now = running
            stream.queue.wait(stream.queue.mark(), check)
            launched = launch(round_index)
            until(launched[1], check)
        return launched

    return alone


def _delayed(launch: Launch, draw: random.Random, most_us: int) -> Launch:
    """Pause for a random time before the op, the same times for the same seed."""

    def delayed(round_index: int) -> tuple[Mark, Mark, OnDone | None]:
        time.sleep(draw.randint(0, most_us) / 1e6)
        return launch(round_index)

    return delayed


def _must_not_draw(work: Work) -> bool:
    """True if any draw in this op is an error, and would move the generator of other devices."""
    if not work.place.device.source.shared:
        return False
    if work.name.kind in "UNR" or (work.evaluates and work.name.kind == "F"):
        return True
    if work.name.kind not in "FB" or work.place.alone:
        return False
    draws = work.task.plan.shards[work.name.number].rng_draws
    return draws == 0 or (work.name.kind == "B" and work.activations != "recompute")
