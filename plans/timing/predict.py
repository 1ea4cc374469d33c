"""What each device and each task of a plan does by the plan's own times."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from plans.ops import Lane, Stream
from plans.schema import Op, Plan, Program, RoundKind
from plans.timing.intervals import exposed_copy_us
from plans.timing.kinds import Runs, of_kind, runs
from profiles.units import LARGEST


class DeviceTimes(NamedTuple):
    """A device's work, the time in which it only copies, and the most bytes that it needs."""

    compute_us: int
    exposed_copy_us: int
    peak_bytes: int


def round_reach(kind: Program | RoundKind, rounds: int) -> int:
    """The most of so many rounds of one kind in a row that run at the same time."""
    return min(rounds, kind.round_us // max(1, kind.period_us) + 1)


_Spans = tuple[tuple[str, int, int], ...]
"""The stream, start and end of ops."""


def _spans(ops: Iterable[Op]) -> _Spans:
    return tuple((op.stream, op.start_us, op.end_us) for op in ops)


def _exposed_us(spans: _Spans, period_us: int, rounds: int) -> dict[int, int]:
    """Exposed copies of so many rounds of these ops."""
    return exposed_copy_us(
        (stream, at + start, at + end)
        for at in range(0, rounds * period_us, period_us)
        for stream, start, end in spans
    )


def device_times(plan: Plan) -> tuple[DeviceTimes, ...]:
    """Compute, exposed copies and peak bytes of every device, by the plan's own times.

    Beyond the rounds of a run that reach into each other every further one exposes as much."""
    exposed = cache(_exposed_us)  # programs of tasks of one shape have the same spans
    totals = [DeviceTimes(0, 0, 0)] * len(plan.devices)

    @cache
    def used(name: str, whole: Runs) -> tuple[Counter[int], Counter[int]]:
        """By the program's devices the compute and the exposed copies of a segment."""
        program, busy = plan.program(name), Counter[int]()
        copies = Counter(exposed(_spans(program.enter), 1, 1))
        copies.update(exposed(_spans(program.leave), 1, 1))
        for number, rounds in whole:
            one = of_kind(program, number)
            few = min(rounds, round_reach(one, rounds) + 2)
            spans, period, rest = _spans(one.round), max(one.period_us, 1), rounds - few
            more = exposed(spans, period, few)
            less = exposed(spans, period, few - 1) if rest else more
            copies.update({d: us + rest * (us - less.get(d, 0)) for d, us in more.items()})
            busy.update({d: rounds * us for d, us in enumerate(round_compute_us(one))})
        return busy, copies

    for segment in plan.segments:
        busy, copies = used(segment.program, runs(segment))
        memories = plan.program(segment.program).memory
        for local, (number, memory) in enumerate(zip(segment.devices, memories, strict=True)):
            compute_us, exposed_us, peak = totals[number]
            totals[number] = DeviceTimes(
                compute_us + busy[local], exposed_us + copies[local], max(peak, memory.bytes)
            )
    return tuple(totals)


def round_exposed_us(program: Program) -> list[int]:
    """Exposed copies of a round of kind 0 in the steady state, on each of the program's devices."""
    few, period = round_reach(program, LARGEST) + 2, max(program.period_us, 1)
    spans = _spans(program.round)
    more, less = (_exposed_us(spans, period, rounds) for rounds in (few, few - 1))
    return [more.get(device, 0) - less.get(device, 0) for device in range(program.devices)]


def busy_us(ops: Iterable[Op]) -> Counter[Stream]:
    """By stream the time of its ops."""
    found = Counter[Stream]()
    for op in ops:
        found[op.queue] += op.us
    return found


def round_compute_us(program: Program) -> list[int]:
    """Compute time of one round of kind 0 on each of the program's devices."""
    busy = busy_us(program.round)
    return [busy[Stream(device, Lane.COMPUTE)] for device in range(program.devices)]


def task_spans(plan: Plan) -> dict[str, tuple[int, int]]:
    """When each task's first segment begins, and when its last one ends."""
    spans: dict[str, tuple[int, int]] = {}
    for segment in plan.segments:
        for name in plan.program(segment.program).tasks:
            start, end = spans.get(name, (segment.start_us, segment.end_us))
            spans[name] = min(start, segment.start_us), max(end, segment.end_us)
    return {task.name: spans[task.name] for task in plan.tasks if task.name in spans}
