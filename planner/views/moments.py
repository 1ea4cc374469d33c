"""A moment of the predicted run: who trains what, and the op that runs on each stream.

All from the closed form of op times, so a moment in the millionth round costs as much as one in
the first. Rounds and steps count from 0, as in run logs; times are µs since the plan's start.
The types below are the JSON of `show --at --json`.
"""

from dataclasses import dataclass

from planner.views.focus import active, known_task, on_devices, place, runs
from planner.views.layout import receiver, spaces
from plans.op_words import meaning
from plans.order import first_steps
from plans.schema import Plan
from plans.timing import PhaseName, Planned, pending, streams
from profiles.console import columns
from profiles.errors import FormatError
from profiles.units import show_clock


@dataclass(frozen=True)
class RunningOp:
    """An op, in words what it does, and when it runs."""

    op: str
    what: str
    segment: int
    phase: PhaseName
    round: int
    start_us: int
    end_us: int


@dataclass(frozen=True)
class Stream:
    """A stream at the moment: the op that runs, or else the next one, if there is any."""

    stream: str
    running: RunningOp | None
    next: RunningOp | None


@dataclass(frozen=True)
class TaskStep:
    """The step that the task's round trains, and how many steps the task has in all."""

    task: str
    step: int
    steps: int


@dataclass(frozen=True)
class ActiveSegment:
    """A segment at the moment. round: the earliest that has not ended; begun_round: the latest that
    has begun, since rounds overlap. In enter both are 0, in leave the last."""

    segment: int
    program: str
    devices: tuple[int, ...]
    start_us: int
    end_us: int
    phase: PhaseName
    round: int
    begun_round: int
    rounds: int
    tasks: tuple[TaskStep, ...]
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class WaitingDevice:
    """A device without a segment at the moment, and the segment that comes next, if any."""

    device: int
    next_segment: int | None


@dataclass(frozen=True)
class Moment:
    """Everything about one moment; with `task` what concerns that task alone."""

    at_us: int
    makespan_us: int
    estimated: bool
    task: str | None
    segments: tuple[ActiveSegment, ...]
    waiting_devices: tuple[WaitingDevice, ...]


def moment(plan: Plan, us: int, task: str | None = None) -> Moment:
    """The moment `us`, on all devices or where `task` runs.

    FormatError when the plan has no such task or has ended before.
    """
    end = plan.prediction.makespan_us
    if not 0 <= us < end:
        raise FormatError(
            f"--at {show_clock(us)} is outside the predicted run, which ends at {show_clock(end)}; "
            "give a moment before that"
        )
    known_task(plan, task)
    found = tuple(_active(plan, index, us) for index in active(plan, us, task))
    busy = {device for one in found for device in one.devices}
    idle = [d for d in range(len(plan.devices)) if d not in busy] if task is None else []
    waiting = tuple(WaitingDevice(d, _next_segment(plan, us, device=d)) for d in idle)
    return Moment(us, end, plan.estimated, task, found, waiting)


def _on_disk(plan: Plan, task: str, us: int) -> bool:
    """True when a task waits on the disk at `us`, where none of its segments runs."""
    mine = [segment for segment in plan.segments if task in plan.trained(segment)]
    before = [segment for segment in mine if segment.end_us <= us]
    return before[-1].write_us is not None if before else mine[0].read_us is not None


def _active(plan: Plan, index: int, us: int) -> ActiveSegment:
    segment = plan.segments[index]
    program = plan.program(segment.program)
    phase, number, begun = place(program, segment, us)
    totals = {task.name: task.done + task.steps for task in plan.tasks}
    ahead, firsts = 0 if program.evaluates else number, first_steps(plan)[index]
    return ActiveSegment(
        index,
        segment.program,
        segment.devices,
        segment.start_us,
        segment.end_us,
        phase,
        number,
        begun,
        segment.rounds,
        tuple(TaskStep(t, firsts[t] + ahead, totals[t]) for t in program.tasks),
        _streams(plan, index, us),
    )


def _streams(plan: Plan, index: int, us: int) -> tuple[Stream, ...]:
    """Every stream of the segment, in order of device; the next op may be of a later segment."""
    segment = plan.segments[index]
    names = streams(plan, segment)
    ops: dict[str, tuple[PhaseName, Planned]] = {}
    for number, other in enumerate(plan.segments[index:], index):
        if number == index or set(other.devices) & set(segment.devices):
            coming = sorted(pending(plan, number, us), key=lambda item: item[1].start_us)
            for phase, one in coming:
                ops.setdefault(one.stream, (phase, one))
        if ops.keys() >= set(names):
            break
    return tuple(_stream(plan, name, us, *ops.get(name, ("round", None))) for name in names)


def _stream(plan: Plan, name: str, us: int, phase: PhaseName, one: Planned | None) -> Stream:
    """A stream with the op that it does next to end, if any: it runs, or follows."""
    if one is None:
        return Stream(name, None, None)
    what = meaning(plan, one.op) + _to(plan, one)
    op = RunningOp(one.op.id, what, one.segment, phase, one.round, one.start_us, one.end_us)
    return Stream(name, op, None) if one.start_us <= us else Stream(name, None, op)


def _to(plan: Plan, one: Planned) -> str:
    """The device of the plan that a send goes to: ` to device 1`."""
    segment = plan.segments[one.segment]
    there = receiver(one.op, spaces(plan.program(segment.program)))
    return "" if there is None else f" to device {segment.devices[there]}"


def _next_segment(
    plan: Plan, us: int, *, device: int | None = None, task: str | None = None
) -> int | None:
    """The next segment to begin after `us`, of those on a device, or of a task."""
    found = [
        (segment.start_us, index)
        for index, segment in enumerate(plan.segments)
        if segment.start_us > us
        and (device is None or device in segment.devices)
        and runs(plan, segment, task)
    ]
    return min(found)[1] if found else None


_PHASES = {
    "enter": "loading, before its round 0",
    "leave": "writing back, after its last round",
}


def describe_moment(plan: Plan, at: Moment) -> str:
    """The moment in words, for the terminal."""
    marks = f", times {plan.emulated}" if plan.emulated else ""
    marks += ", times estimated" if at.estimated else ""
    head = f"at {show_clock(at.at_us)} of {show_clock(at.makespan_us)}, predicted{marks}"
    sections = [f"{head}; rounds and steps count from 0"]
    sections += ["\n".join(_segment_lines(one)) for one in at.segments]
    if at.task is not None and not at.segments:
        where = " on the disk" if _on_disk(plan, at.task, at.at_us) else ""
        index = _next_segment(plan, at.at_us, task=at.task)
        sections.append(_waits(plan, at.task, index, where) or f"{at.task} has ended")
    if at.waiting_devices:
        waits = [(f"device {one.device}", one.next_segment) for one in at.waiting_devices]
        lines = (_waits(plan, *one) or f"{one[0]}: has nothing left to do" for one in waits)
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _waits(plan: Plan, who: str, index: int | None, where: str = "") -> str:
    """`device 1 waits for segment 3: gpt-a on device 1 at 0:10:00`; empty for no segment."""
    if index is None:
        return ""
    segment = plan.segments[index]
    start = f"{on_devices(segment.devices)} at {show_clock(segment.start_us)}"
    return f"{who} waits{where} for segment {index}: {segment.program} on {start}"


def _segment_lines(one: ActiveSegment) -> list[str]:
    more = f" ({one.begun_round} has begun)" if one.begun_round > one.round else ""
    state = _PHASES.get(one.phase, f"round {one.round} of {one.rounds}{more}")
    head = (
        f"segment {one.segment}: {one.program} on {on_devices(one.devices)} from "
        f"{show_clock(one.start_us)} to {show_clock(one.end_us)}: {state}"
    )
    steps = [f"  {task.task}: step {task.step} of {task.steps}" for task in one.tasks]
    rows = [("stream", "runs", "what", "round", "from", "to")]
    rows += [_row(one.segment, stream) for stream in one.streams]
    return [head, *steps, *("  " + line for line in columns(rows))]


def _row(index: int, stream: Stream) -> tuple[str, str, str, str, str, str]:
    op = stream.running or stream.next
    if op is None:
        return stream.stream, "idle to the end", "", "", "", ""
    name = op.op if stream.running else f"idle until {op.op}"
    number = str(op.round) if op.phase == "round" else op.phase
    number += f" of segment {op.segment}" if op.segment != index else ""
    return stream.stream, name, op.what, number, show_clock(op.start_us), show_clock(op.end_us)
