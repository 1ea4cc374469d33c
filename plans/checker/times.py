"""Rule 7 of the checker: predicted times are possible, and the certificate follows from them."""

from collections.abc import Iterable, Iterator

from plans.checker.order import Phase
from plans.order import Rivals, rivals, waits_for
from plans.schema import Plan, Segment
from plans.timing import duration_us, kinds_of, round_reach, runs

_TOGETHER = 64  # rounds of a program


def phase_times(phases: Iterable[Phase]) -> Iterator[str]:
    """No op starts before its phase or before what it waits for ends; told once per op."""
    for phase in phases:
        for op, waits in zip(phase.ops, phase.waits, strict=True):
            if op.end_us < op.start_us or op.start_us < 0:
                yield (
                    f"{op.id}: lasts from {op.start_us} µs to {op.end_us} µs, expected "
                    "0 <= start <= end"
                )
            if op.end_us > phase.us:
                yield f"{op.id}: ends at {op.end_us} µs but {phase.name} lasts {phase.us} µs"
            for index, lag in waits:
                before, last = phase.ops[index], " of the round before" if lag else ""
                start = op.start_us + lag * phase.period_us
                if start < before.end_us and lag < phase.rounds:
                    yield (
                        f"{op.id}: starts at {start} µs but waits for {before.id}{last}, which "
                        f"ends at {before.end_us} µs"
                    )
                    break


def segment_times(plan: Plan) -> Iterator[str]:
    """Segments last as long as their programs, begin after those that they wait for, and no sooner
    than their tasks may."""
    shared = rivals(plan)
    for index, (segment, before) in enumerate(zip(plan.segments, waits_for(plan), strict=True)):
        program, where = plan.program(segment.program), f"segment {index}:"
        end = segment.start_us + duration_us(program, segment.rounds, segment.kinds)
        end += segment.disk_us
        if segment.end_us != end:
            yield (
                f"{where} ends at {segment.end_us} µs, but {segment.rounds} rounds of "
                f"{program.name!r} from {segment.start_us} µs end at {end} µs"
            )
        for kind, rounds in sorted(set(runs(segment))):
            together = round_reach(kinds_of(program)[kind], rounds)
            if together > _TOGETHER:
                yield (
                    f"{where} {together} rounds of {program.name!r} run at the same time, "
                    f"expected at most {_TOGETHER}"
                )
        for task in map(plan.task, program.tasks):
            if segment.start_us < task.start_us:
                yield (
                    f"{where} starts at {segment.start_us} µs but task {task.name!r} may not begin "
                    f"before {task.start_us} µs"
                )
        ends = [(plan.segments[other].end_us, other) for other in before]
        until, other = max(ends, default=(0, 0))
        if segment.start_us < until:
            what = _contested(plan, segment, plan.segments[other], shared)
            yield (
                f"{where} starts at {segment.start_us} µs but segment {other} uses {what} until "
                f"{until} µs"
            )


def _contested(plan: Plan, one: Segment, other: Segment, shared: Rivals) -> str:
    """The task, device or host bytes that both segments use, in words: a task before its device."""
    for name in plan.trained(one):
        if name in plan.trained(other):
            return f"task {name!r}"
    if devices := sorted({*one.devices} & {*other.devices}):
        return f"device {devices[0]}"
    pairs = [{p for name in plan.trained(s) for p in shared.get(name, ())} for s in (one, other)]
    first, second = min(pairs[0] & pairs[1])
    return f"the host bytes that {first!r} and {second!r} share"


def certificate(plan: Plan) -> Iterator[str]:
    """The makespan is the last end, and no bound is above it."""
    told = plan.prediction
    last = max(segment.end_us for segment in plan.segments)
    if told.makespan_us != last:
        yield f"prediction: makespan is {told.makespan_us} µs but the last segment ends at {last}"
    if told.makespan_us < told.configuration_us:
        yield (
            f"prediction: makespan {told.makespan_us} µs is below the {told.configuration_us} µs "
            "that any schedule of these programs takes"
        )
    if told.makespan_us < told.lower_bound_us:
        yield (
            f"prediction: makespan {told.makespan_us} µs is below the lower bound "
            f"{told.lower_bound_us}"
        )
