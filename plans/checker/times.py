"""Rule 7 of the checker: predicted times are possible, and the certificate follows from them."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from plans.checker.order import Phase
from plans.order import rivals
from plans.schema import Plan, Program, Segment
from plans.timing import (
    alone,
    duration_us,
    kinds_of,
    round_reach,
    runs,
)

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
                before = phase.ops[index]
                start = op.start_us + lag * phase.period_us
                if start < before.end_us and lag < phase.rounds:
                    yield _early(op.id, start, before.id, before.end_us, lag)
                    break


def _early(op: str, start: int, before: str, end: int, lag: int) -> str:
    last = " of the round before" if lag else ""
    return f"{op}: starts at {start} µs but waits for {before}{last}, which ends at {end} µs"


def segment_times(plan: Plan) -> Iterator[str]:
    """Segments last as long as their programs and never overlap on a device or a task."""
    earliest = {task.name: task.start_us for task in plan.tasks}
    shared = rivals(plan)
    busy: dict[str, tuple[int, int]] = {}  # device or task -> latest end so far, of which segment
    for index, segment in enumerate(plan.segments):
        program = plan.program(segment.program)
        end = segment.start_us + duration_us(program, segment.rounds, segment.kinds)
        end += segment.disk_us
        if segment.end_us != end:
            yield (
                f"segment {index}: ends at {segment.end_us} µs, but {segment.rounds} rounds of "
                f"{program.name!r} from {segment.start_us} µs end at {end} µs"
            )
        yield from _together(index, segment, program)
        yield from _begun(index, segment, program, earliest)
        claims = _claims(segment, program, shared)
        clash = _clash(segment, claims, busy)
        if clash:
            what, (until, other) = clash
            yield (
                f"segment {index}: starts at {segment.start_us} µs but segment {other} uses "
                f"{what} until {until} µs"
            )
        for what in claims:
            busy[what] = max(busy.get(what, (0, 0)), (segment.end_us, index))


def _together(index: int, segment: Segment, program: Program) -> Iterator[str]:
    """Runs of rounds of which too many run at the same time."""
    kinds = kinds_of(program)
    for kind, rounds in alone(runs(segment)):
        together = round_reach(kinds[kind], rounds)
        if together > _TOGETHER:
            yield (
                f"segment {index}: {together} rounds of {program.name!r} run at the same time, "
                f"expected at most {_TOGETHER}"
            )


def _begun(
    index: int, segment: Segment, program: Program, earliest: Mapping[str, int]
) -> Iterator[str]:
    """Tasks of the segment that may not begin so soon."""
    for name in program.tasks:
        if segment.start_us < earliest.get(name, 0):
            yield (
                f"segment {index}: starts at {segment.start_us} µs but task {name!r} may not begin "
                f"before {earliest[name]} µs"
            )


def _claims(
    segment: Segment, program: Program, shared: Mapping[str, Collection[tuple[str, str]]]
) -> list[str]:
    pairs = {pair for name in program.tasks for pair in shared.get(name, ())}
    return [
        *(f"task {name!r}" for name in program.tasks),
        *(f"device {number}" for number in segment.devices),
        *(f"the host bytes that {one!r} and {other!r} share" for one, other in sorted(pairs)),
    ]


def _clash(
    segment: Segment, claims: Iterable[str], busy: Mapping[str, tuple[int, int]]
) -> tuple[str, tuple[int, int]] | None:
    """The claim in use for longest after the segment begins: a task rather than its device."""
    late = [(what, busy[what]) for what in claims if what in busy]
    late = [claim for claim in late if claim[1][0] > segment.start_us]
    return max(late, key=lambda claim: claim[1][0], default=None)


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
