"""Predictions for devices and tasks: compute, exposed copies, first to last op."""

from collections import Counter
from collections.abc import Iterable
from functools import cache

from plans.prediction import DevicePrediction, TaskPrediction
from plans.schema import Op, Plan, Program, RoundKind
from plans.timing.intervals import exposed_copy_us
from plans.timing.kinds import kinds_of, of_kind, runs
from plans.timing.phases import steady_us
from profiles.units import LARGEST


def round_reach(kind: Program | RoundKind, rounds: int) -> int:
    """The most of so many rounds of one kind in a row that run at the same time."""
    return min(rounds, kind.round_us // max(1, kind.period_us) + 1)


_Spans = tuple[tuple[str, int, int], ...]
"""The stream, start and end of ops."""


def _spans(ops: Iterable[Op]) -> _Spans:
    return tuple((op.stream, op.start_us, op.end_us) for op in ops)


def _exposed_us(spans: _Spans, period_us: int, rounds: int) -> dict[str, int]:
    """Exposed copies of so many rounds of these ops."""
    return exposed_copy_us(
        (stream, at + start, at + end)
        for at in range(0, rounds * period_us, period_us)
        for stream, start, end in spans
    )


def predict_devices(plan: Plan) -> tuple[DevicePrediction, ...]:
    """Compute, exposed copies and peak bytes of every device by the plan's own times.

    Beyond the rounds of a run that reach into each other every further one exposes as much."""
    exposed = cache(_exposed_us)  # programs of tasks of one shape have the same spans
    kinds = {program.name: kinds_of(program) for program in plan.programs}

    @cache
    def once(name: str) -> Counter[str]:
        program = plan.program(name)
        return Counter(exposed(_spans(program.enter), 1, 1)) + Counter(
            exposed(_spans(program.leave), 1, 1)
        )

    @cache
    def repeated(name: str, number: int, rounds: int) -> dict[str, int]:
        kind = kinds[name][number]
        return exposed(_spans(kind.ops), max(kind.period_us, 1), rounds)

    @cache
    def computing(name: str, number: int) -> list[int]:
        return round_compute_us(of_kind(plan.program(name), number))

    totals = [(0, 0, 0)] * len(plan.devices)
    for segment in plan.segments:
        name, program = segment.program, plan.program(segment.program)
        copies, busy = Counter(once(name)), [0] * program.devices
        for number, rounds in runs(segment):
            few = min(rounds, round_reach(kinds[name][number], rounds) + 2)
            more, rest = repeated(name, number, few), rounds - few
            less = repeated(name, number, few - 1) if rest else more
            for device, us in more.items():
                copies[device] += us + rest * (us - less.get(device, 0))
            busy = [
                us + rounds * one for us, one in zip(busy, computing(name, number), strict=True)
            ]
        for local, (number, memory) in enumerate(zip(segment.devices, program.memory, strict=True)):
            compute, copied, peak = totals[number]
            totals[number] = (
                compute + busy[local],
                copied + copies[str(local)],
                max(peak, memory.slab_bytes + memory.reserve_bytes),
            )
    return tuple(DevicePrediction(*total) for total in totals)


def round_exposed_us(program: Program) -> list[int]:
    """Exposed copies of a round of kind 0 in the steady state, on each of the program's devices."""
    few, period = round_reach(program, LARGEST) + 2, max(program.period_us, 1)
    spans = _spans(program.round)
    more, less = (_exposed_us(spans, period, rounds) for rounds in (few, few - 1))
    devices = map(str, range(program.devices))
    return [more.get(device, 0) - less.get(device, 0) for device in devices]


def round_compute_us(program: Program) -> list[int]:
    """Compute time of one round of kind 0 on each of the program's devices."""
    found = [0] * program.devices
    for op in program.round:
        device, _, kind = op.stream.partition(".")
        if kind == "compute":
            found[int(device)] += op.end_us - op.start_us
    return found


def predict_tasks(plan: Plan) -> tuple[TaskPrediction, ...]:
    """When each task's segments begin and end, and a round of the first that trains it: of several
    kinds their mean."""
    spans: dict[str, tuple[int, int]] = {}
    rounds: dict[str, int] = {}
    for segment in plan.segments:
        program = plan.program(segment.program)
        for name in program.tasks:
            start, end = spans.get(name, (segment.start_us, segment.end_us))
            spans[name] = min(start, segment.start_us), max(end, segment.end_us)
            if not program.evaluates:
                rounds.setdefault(name, steady_us(program, segment) // segment.rounds)
    return tuple(TaskPrediction(t.name, *spans[t.name], rounds[t.name]) for t in plan.tasks)
