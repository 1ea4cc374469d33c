"""What runs at a moment of the predicted run: segments, rounds, steps, and the op of each stream.

All from the closed form of op times, so a moment in the millionth round costs as much as one in
the first. Rounds and steps count from 0, as in run logs; times are µs since the plan's start.
"""

from typing import Literal, NamedTuple

from plans.metrics import DISK, Planned, phase_starts, plan_stream, running, upcoming
from plans.schema import Move, Plan, Program, Segment, parse_id
from plans.segments import first_steps
from profiles.errors import FormatError
from profiles.units import LARGEST, show_clock

PhaseName = Literal["enter", "round", "leave"]


class Stream(NamedTuple):
    """A stream at the moment: the op that runs, or else the next one, if there is any."""

    name: str
    running: Planned | None
    following: Planned | None


class Step(NamedTuple):
    """Where a task stands: the step that its round trains, and how many it has in all."""

    task: str
    step: int
    steps: int


class Active(NamedTuple):
    """A segment at the moment.

    number: the earliest round that has not ended; begun: the latest that has begun, since rounds
    reach into each other. In enter both are 0, in leave the last.
    """

    segment: int
    phase: PhaseName
    number: int
    begun: int
    tasks: tuple[Step, ...]
    streams: tuple[Stream, ...]


class Waiting(NamedTuple):
    """A device that no segment has at the moment, and the segment that comes next, if any."""

    device: int
    following: int | None


class Moment(NamedTuple):
    """Everything about the moment `us`; with `task` what concerns that task alone.

    move: what the disk does, or does next; None without a disk, and when it has nothing to do."""

    us: int
    task: str | None
    active: tuple[Active, ...]
    waiting: tuple[Waiting, ...]
    move: Move | None = None


def moment(plan: Plan, us: int, task: str | None = None) -> Moment:
    """What runs at `us`, on all devices or where `task` runs.

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
    busy = {device for one in found for device in plan.segments[one.segment].devices}
    idle = [d for d in range(len(plan.devices)) if d not in busy] if task is None else []
    waiting = tuple(Waiting(d, following(plan, us, device=d)) for d in idle)
    return Moment(us, task, found, waiting, _move(plan, us, task))


def _move(plan: Plan, us: int, task: str | None) -> Move | None:
    """The first move to end after `us`, of all or of one task."""
    moves = plan.disk.moves if plan.disk else ()
    mine = (move for move in moves if task is None or parse_id(move.id).task == task)
    return next((move for move in mine if us < move.end_us), None)


def known_task(plan: Plan, task: str | None) -> None:
    """FormatError when the plan has no such task."""
    names = [one.name for one in plan.tasks]
    if task is not None and task not in names:
        raise FormatError(f"the plan has no task {task!r}; it has {', '.join(names)}")


def active(plan: Plan, us: int, task: str | None = None) -> list[int]:
    """The segments that run at `us`, those of `task` only if it is given."""
    mine = programs_of(plan, task)
    return [
        index
        for index, segment in enumerate(plan.segments)
        if segment.start_us <= us < segment.end_us and segment.program in mine
    ]


def programs_of(plan: Plan, task: str | None) -> set[str]:
    """The names of a task's programs, or of all."""
    return {one.name for one in plan.programs if task is None or task in one.tasks}


def training(plan: Plan, task: str) -> set[str]:
    """Of a task's programs those that train it."""
    return programs_of(plan, task) - {one.name for one in plan.programs if one.evaluates}


def program_of(plan: Plan, segment: Segment) -> Program:
    return plan.program(segment.program)


def on_devices(segment: Segment) -> str:
    """`device 0`, or `devices 0, 3`."""
    numbers = ", ".join(map(str, segment.devices))
    return f"device{'s' if len(segment.devices) > 1 else ''} {numbers}"


def first_step(plan: Plan, index: int, task: str) -> int:
    """The step of `task` that round 0 of segment `index` trains, or the steps done where it
    evaluates, with those before the plan."""
    return first_steps(plan)[index][task]


def place(program: Program, segment: Segment, us: int) -> tuple[PhaseName, int, int]:
    """The phase that a segment is in at `us`, its earliest unfinished and its latest begun round.

    The latter are 0 in enter, and the last round in leave.
    """
    _, first, leave = phase_starts(program, segment, 0)
    last = segment.rounds - 1
    if us < first:
        return "enter", 0, 0
    if us >= leave:
        return "leave", last, last
    period = max(program.period_us, 1)
    begun = min((us - first) // period, last)
    open_ = max(-((first + program.round_us - us - 1) // period), 0)
    return "round", min(open_, begun), begun


def _active(plan: Plan, index: int, us: int) -> Active:
    segment = plan.segments[index]
    program = program_of(plan, segment)
    phase, number, begun = place(program, segment, us)
    totals = {task.name: task.done + task.steps for task in plan.tasks}
    ahead = 0 if program.evaluates else number
    tasks = tuple(Step(t, first_step(plan, index, t) + ahead, totals[t]) for t in program.tasks)
    return Active(index, phase, number, begun, tasks, _streams(plan, index, us))


def _streams(plan: Plan, index: int, us: int) -> tuple[Stream, ...]:
    """Every stream of the segment, in order of device; what follows may be of a later segment."""
    segment = plan.segments[index]
    program = program_of(plan, segment)
    now = {one.stream: one for one in running(index, program, segment, us)}
    ops = (*program.enter, *program.round, *program.leave)
    names = {plan_stream(op.stream, segment.devices) for op in ops}
    later: dict[str, Planned] = {}
    for number in range(index, len(plan.segments)):
        other = plan.segments[number]
        if names <= now.keys() | later.keys():
            break
        if number == index or set(other.devices) & set(segment.devices):
            for one in upcoming(number, program_of(plan, other), other, us):
                if one.stream in names and one.stream not in now:
                    later[one.stream] = min(one, later.get(one.stream, one), key=_start)
    order = sorted(names, key=rank)
    return tuple(
        Stream(name, now.get(name), None if name in now else later.get(name)) for name in order
    )


def _start(one: Planned) -> tuple[int, int]:
    return one.start_us, one.end_us


def rank(stream: str) -> tuple[int, int]:
    """(device, place among its streams, compute first); `host.1` belongs to device 1, the disk
    comes after all devices."""
    if stream == DISK:
        return LARGEST, 0
    left, right = stream.split(".")
    device, kind = (right, left) if left == "host" else (left, right)
    return int(device), ("compute", "h2d", "d2h", "p2p", "host").index(kind)


def following(
    plan: Plan, us: int, *, device: int | None = None, task: str | None = None
) -> int | None:
    """The next segment to begin after `us`, of those on a device, or of a task."""
    mine = programs_of(plan, task)
    found = [
        (segment.start_us, index)
        for index, segment in enumerate(plan.segments)
        if segment.start_us > us
        and (device is None or device in segment.devices)
        and segment.program in mine
    ]
    return min(found)[1] if found else None
