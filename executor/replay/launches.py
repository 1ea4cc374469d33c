"""An op's launch, with everything that the run's settings put around it when its job is made.

    run ─▶ metered, watched, traced ─▶ between marks ─▶ locked

In the steady state of most runs an op is launched between two marks and nothing else.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from executor.devices import Mark, Queue, least_us, until
from executor.errors import RunError
from executor.numerics import no_draws
from executor.replay.ops import Run, Work
from executor.replay.settings import Settings
from executor.replay.tickets import Launch, OnDone, Stream

Around = Callable[[int], AbstractContextManager[object] | None]  # of a round, if it has one

UNPLANNED = (
    "draws random numbers although the plan knows of none; profile again, or make the layer draw "
    "the same number each time"
)


def launch_of(
    work: Work,
    run: Run,
    settings: Settings,
    stream: Stream,
    locks: Sequence[threading.Lock],
    check: Callable[[], None],
) -> Launch:
    """The launch of an op, which `run` launches, into its stream. `locks`: those of the devices it
    works on, if no two of their ops may overlap; `check` may raise to end a wait."""
    around: list[Around] = []
    if trace := settings.trace:
        around.append(lambda _: trace(work.op.id))
    if settings.keep_going and _must_not_draw(work):  # a draw would fail tasks on other devices
        around.append(lambda r: None if work.is_metered(r) else no_draws(UNPLANNED))
    if work.metered:
        around.append(lambda r: _metered(work) if work.is_metered(r) else None)
    run = partial(_within, run, around) if around else run
    launch = marked(run, stream.queue, least_us(work.place.device.spec, work.op), check)
    return _alone(launch, locks, stream, check) if locks else launch


@contextmanager
def _metered(work: Work) -> Iterator[None]:
    """Measure the op's transients; RunError when they exceed the device's reserve."""
    name, place, memory, meter = work.name, work.place, work.memory, work.place.meter
    key = work.task.plan.name, name.number, name.index
    keeps = name.kind == "F" and work.activations != "recompute" and not work.evaluates
    makes = key if keeps or name.kind == "I" else None
    with meter.op(makes, key if name.kind in "BIW" else None):
        yield
    place.took(memory.slab_bytes + meter.taken_bytes)
    if meter.taken_bytes > memory.reserve_bytes + place.device.slack_bytes:
        live = f", {meter.graph_bytes} of them in live graphs," if meter.graph_bytes else ""
        raise RunError(
            f"took {meter.taken_bytes} bytes beside its buffers{live} but its program reserves "
            f"{memory.reserve_bytes} on device {place.number}; "
            "profile again or lower the microbatch"
        )


def _within(run: Run, around: Sequence[Around], round_index: int) -> OnDone | None:
    """Run within these contexts of the round, the first one outside."""
    with ExitStack() as held:
        for context in around:
            if (one := context(round_index)) is not None:
                held.enter_context(one)
        return run(round_index)


def marked(run: Run, queue: Queue, least: int, check: Callable[[], None]) -> Launch:
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


def _must_not_draw(work: Work) -> bool:
    """True if any draw in this op is an error, and would move the generator of other devices."""
    if not work.place.device.source.shared:
        return False
    if work.name.kind in "UNRW" or (work.evaluates and work.name.kind == "F"):
        return True
    if work.name.kind not in "FBI" or work.place.alone:
        return False
    draws = work.task.plan.shards[work.name.number].rng_draws
    return draws == 0 or (work.name.kind != "F" and work.activations != "recompute")
