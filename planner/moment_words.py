"""A moment of the predicted run in words, for the terminal, and as data, for scripts."""

from typing import Any

from planner.moments import (
    Active,
    Moment,
    PhaseName,
    Stream,
    Waiting,
    following,
    on_devices,
    program_of,
)
from planner.traffic import away, task_of
from plans.disk import kept_bytes
from plans.metrics import Planned
from plans.schema import Move, Op, Plan, Segment, parse_id
from profiles.console import columns
from profiles.units import show_bytes, show_clock

_PHASES = {
    "enter": "loading, before its round 0",
    "leave": "writing back, after its last round",
}
_VALUES = {
    "param": "parameters of shard {}",
    "state": "optimizer state of shard {}",
    "grad": "gradients of shard {}",
    "x": "boundary before shard {}, microbatch {}",
    "dx": "gradient of the boundary before shard {}, microbatch {}",
    "saved": "activations of shard {}, microbatch {}",
    "batch": "batch, microbatch {1}",
    "norm": "norms of the gradients",
}
_ITEMS = {"x": "x", "dx": "dx", "a": "saved", "batch": "batch", "norm": "norm"}
_COPIES = {"P": "prefetch", "S": "spill", "X": "send"}


def meaning(plan: Plan, op: Op) -> str:
    """An op in words: `backward of shard 3, microbatch 2, after its forward again`."""
    name = parse_id(op.id)
    task = next(task for task in plan.tasks if task.name == name.task)
    which = f"of shard {name.number}, microbatch {name.index}"
    if name.kind == "F":
        return f"forward {which}"
    if name.kind == "B":
        if name.number == len(task.shards) - 1:
            return f"forward, loss and backward {which}"
        again = task.shards[name.number].activations == "recompute"
        return f"backward {which}{', after its forward again' if again else ''}"
    if name.kind == "U":
        place = "host" if op.stream.startswith("host") else "device"
        return f"update of shard {name.number} on the {place}"
    if name.kind == "N":
        return f"norms of the gradients of shard {name.number}"
    if name.kind == "R":
        return f"sum of gradients of shard {name.number}"
    role = next(iter(op.writes), _ITEMS.get(name.item, ""))
    role = {"y": "x", "dy": "dx"}.get(role, role)
    value = _VALUES.get(role, "shard {}").format(name.number, name.index)
    return f"{_COPIES[name.kind]} {value}"


def describe(plan: Plan, at: Moment) -> str:
    """The moment in words, for the terminal."""
    marks = f", times {plan.emulated}" if plan.emulated else ""
    marks += ", times estimated" if plan.estimated else ""
    total = show_clock(plan.prediction.makespan_us)
    sections = [
        [f"at {show_clock(at.us)} of {total}, predicted{marks}; rounds and steps count from 0"],
        *(_section(plan, at.us, one) for one in at.active),
    ]
    if at.task is not None and not at.active:
        sections.append([_absent(plan, at.us, at.task)])
    if at.waiting:
        sections.append([_waits(plan, one) for one in at.waiting])
    if at.move:
        sections.append([_moves(plan, at.us, at.move)])
    return "\n\n".join("\n".join(section) for section in sections)


def _moves(plan: Plan, us: int, move: Move) -> str:
    """`disk: a.disk.P0 reads 12.0 MiB of a for segment 3, from 0:00:01 to 0:00:02`."""
    times = f"from {show_clock(move.start_us)} to {show_clock(move.end_us)}"
    idle = "" if move.start_us <= us else "idle until "
    return f"disk: {idle}{move.id}: {moving(plan, move)}, {times}"


def moving(plan: Plan, move: Move) -> str:
    """A move in words: `reads 12.0 MiB of a for segment 3`."""
    task = task_of(plan, move)
    verb, why = ("reads", "for") if parse_id(move.id).kind == "P" else ("writes", "after")
    return f"{verb} {show_bytes(kept_bytes(task))} of {task.name} {why} segment {move.segment}"


def _section(plan: Plan, us: int, one: Active) -> list[str]:
    segment = plan.segments[one.segment]
    more = f" ({one.begun} has begun)" if one.begun > one.number else ""
    state = _PHASES.get(one.phase, f"round {one.number} of {segment.rounds}{more}")
    head = (
        f"segment {one.segment}: {segment.program} on {on_devices(segment)} from "
        f"{show_clock(segment.start_us)} to {show_clock(segment.end_us)}: {state}"
    )
    steps = [f"  {task.task}: step {task.step} of {task.steps}" for task in one.tasks]
    rows = [("stream", "runs", "what", "round", "from", "to")]
    rows += [_row(plan, one.segment, stream) for stream in one.streams]
    return [head, *steps, *("  " + line for line in columns(rows))]


def _row(plan: Plan, index: int, stream: Stream) -> tuple[str, str, str, str, str, str]:
    op = stream.running or stream.following
    if op is None:
        return stream.name, "idle to the end", "", "", "", ""
    name = op.op.id if stream.running else f"idle until {op.op.id}"
    phase = _phase_of(plan, op)
    number = str(op.round) if phase == "round" else phase
    if op.segment != index:
        number += f" of segment {op.segment}"
    times = show_clock(op.start_us), show_clock(op.end_us)
    return stream.name, name, meaning(plan, op.op), number, *times


def _phase_of(plan: Plan, one: Planned) -> PhaseName:
    """Op ids are unique over all three phases of a program."""
    program = program_of(plan, plan.segments[one.segment])
    if any(op.id == one.op.id for op in program.enter):
        return "enter"
    return "leave" if any(op.id == one.op.id for op in program.leave) else "round"


def _absent(plan: Plan, us: int, task: str) -> str:
    index = following(plan, us, task=task)
    if index is None:
        return f"{task} has ended"
    where = " on the disk" if away(plan, task, us) else ""
    return f"{task} waits{where} for segment {index}: {_start_of(plan.segments[index])}"


def _waits(plan: Plan, one: Waiting) -> str:
    if one.following is None:
        return f"device {one.device}: has nothing left to do"
    segment = plan.segments[one.following]
    return f"device {one.device}: waits for segment {one.following}: {_start_of(segment)}"


def _start_of(segment: Segment) -> str:
    return f"{segment.program} on {on_devices(segment)} at {show_clock(segment.start_us)}"


def to_json(plan: Plan, at: Moment) -> dict[str, Any]:
    """The moment as data, for scripts; what runs and what follows are null where there is none."""
    return {
        "at_us": at.us,
        "makespan_us": plan.prediction.makespan_us,
        "estimated": plan.estimated,
        "segments": [_segment_json(plan, one) for one in at.active],
        "waiting_devices": [
            {"device": one.device, "next_segment": one.following} for one in at.waiting
        ],
        "disk": at.move and _move_json(plan, at.move),
    }


def _move_json(plan: Plan, move: Move) -> dict[str, Any]:
    return {
        "move": move.id,
        "what": moving(plan, move),
        "segment": move.segment,
        "start_us": move.start_us,
        "end_us": move.end_us,
    }


def _segment_json(plan: Plan, one: Active) -> dict[str, Any]:
    segment = plan.segments[one.segment]
    return {
        "segment": one.segment,
        "program": segment.program,
        "devices": list(segment.devices),
        "start_us": segment.start_us,
        "end_us": segment.end_us,
        "phase": one.phase,
        "round": one.number,
        "begun_round": one.begun,
        "rounds": segment.rounds,
        "tasks": [task._asdict() for task in one.tasks],
        "streams": [
            {
                "stream": stream.name,
                "running": _op_json(plan, stream.running),
                "next": _op_json(plan, stream.following),
            }
            for stream in one.streams
        ],
    }


def _op_json(plan: Plan, one: Planned | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "op": one.op.id,
        "what": meaning(plan, one.op),
        "segment": one.segment,
        "phase": _phase_of(plan, one),
        "round": one.round,
        "start_us": one.start_us,
        "end_us": one.end_us,
    }
