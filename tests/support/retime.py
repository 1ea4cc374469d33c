"""Plans around ops, and honest times for any plan: everything starts as soon as what it waits for
ends."""

from collections.abc import Iterable, Sequence
from graphlib import CycleError

from msgspec.structs import replace

from plans.checker.order import Phase
from plans.order import Run, laid_out
from plans.prediction import Bound, Prediction, Solver
from plans.schema import Buffer, Device, Host, Memory, Op, Plan, Program, RoundKind, Segment, Task


def untimed(
    name: str,
    tasks: Iterable[str],
    memory: Iterable[Memory],
    *phases: Iterable[Op],
    buffers: Iterable[Buffer] = (),
) -> Program:
    """A program that has no times yet, of what it does to enter, in a round and to leave."""
    enter, rounds, leave = map(tuple, phases)
    sizes = tuple(memory)
    own = tuple(tasks)
    return Program(name, sizes, own, 0, 0, 0, 0, tuple(buffers), enter, rounds, leave)


def around(
    tasks: Iterable[Task],
    programs: Iterable[Program],
    runs: Iterable[tuple[str, tuple[int, ...], int]],
    device: Device,
) -> Plan:
    """A plan without times, on devices like this; `runs` are the segments as (program, devices,
    rounds)."""
    segments = tuple(Segment(name, devices, rounds, 0, 0) for name, devices, rounds in runs)
    return Plan(
        inputs={"profile": "1" * 64},
        devices=(device,) * (1 + max(d for s in segments for d in s.devices)),
        host=Host(1 << 30, ()),
        tasks=tuple(tasks),
        programs=tuple(programs),
        segments=segments,
        prediction=Prediction(0, ()),
        solver=Solver("gantry", 0, "complete", 1),
    )


def retimed(plan: Plan) -> Plan:
    """The plan with the same durations, as early as its order allows; whatever cannot be timed
    (cycles, unknown kinds) keeps its times."""
    plan = replace(plan, programs=tuple(_program(program) for program in plan.programs))
    runs = [Run(plan.program(s.program), s.devices, s.rounds, 0, s.kinds) for s in plan.segments]
    if all(kind <= len(run.program.kinds) for run in runs for kind, _ in run.kinds):
        both = zip(plan.segments, laid_out(runs), strict=True)
        timed = (replace(old, start_us=new.start_us, end_us=new.end_us) for old, new in both)
        plan = replace(plan, segments=tuple(timed))
    return foretold(replace(plan, prediction=replace(plan.prediction, bounds=(Bound("none", 0),))))


def foretold(plan: Plan) -> Plan:
    """The plan with the makespan that follows from its times."""
    makespan = max(segment.end_us for segment in plan.segments)
    return replace(plan, prediction=replace(plan.prediction, makespan_us=makespan))


def _program(program: Program) -> Program:
    enter, _ = _phase(program.enter, "enter")
    rounds, period = _phase(program.round, "round")
    leave, _ = _phase(program.leave, "leave")
    return replace(
        program,
        kinds=tuple(_kind(kind) for kind in program.kinds),
        enter=enter,
        round=rounds,
        leave=leave,
        enter_us=_end(enter),
        period_us=period,
        round_us=_end(rounds),
        leave_us=_end(leave),
    )


def _kind(kind: RoundKind) -> RoundKind:
    ops, period = _phase(kind.ops, "round")
    return replace(kind, ops=ops, period_us=period, round_us=_end(ops))


def _end(ops: Sequence[Op]) -> int:
    return max((op.end_us for op in ops), default=0)


def _phase(ops: tuple[Op, ...], name: str) -> tuple[tuple[Op, ...], int]:
    phase, size = Phase(name, ops, 0), len(ops)
    try:
        waits, order = phase.waits, phase.order
    except (CycleError, KeyError):
        return ops, 0
    starts, ends = [0] * size, [0] * size
    for i in order:
        starts[i] = max((ends[j] for j, lag in waits[i] if not lag), default=0)
        ends[i] = starts[i] + max(0, ops[i].us)
    late = [ends[j] - starts[i] for i in order for j, lag in waits[i] if lag]
    timed = (replace(op, start_us=a, end_us=b) for op, a, b in zip(ops, starts, ends, strict=True))
    return tuple(timed), max(0, *late) if name == "round" else 0
