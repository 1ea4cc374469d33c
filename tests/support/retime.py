"""Honest times for any plan: everything starts as soon as what it waits for ends."""

from graphlib import CycleError, TopologicalSorter
from itertools import accumulate

from msgspec.structs import replace

from plans.prediction import Bound
from plans.schema import Op, Plan, Program, RoundKind, Segment


def retimed(plan: Plan) -> Plan:
    """The plan with the same durations, as early as its order allows; whatever cannot be timed
    (cycles) keeps its times."""
    plan = replace(plan, programs=tuple(_program(program) for program in plan.programs))
    segments = _segments(plan)
    bound = min(_compute_us(plan), max(segment.end_us for segment in segments))
    prediction = replace(
        plan.prediction,
        bounds=(Bound("longest op", min(bound, 1)), Bound("compute", bound)),
    )
    return foretold(replace(plan, segments=segments, prediction=prediction))


def foretold(plan: Plan) -> Plan:
    """The plan with the makespan that follows from its times."""
    makespan = max(segment.end_us for segment in plan.segments)
    return replace(plan, prediction=replace(plan.prediction, makespan_us=makespan))


def _program(program: Program) -> Program:
    enter, _ = _phase(program.enter, repeats=False)
    rounds, period = _phase(program.round, repeats=True)
    leave, _ = _phase(program.leave, repeats=False)
    return replace(
        program,
        kinds=tuple(_kind(kind) for kind in program.kinds),
        enter=enter,
        round=rounds,
        leave=leave,
        enter_us=max((op.end_us for op in enter), default=0),
        period_us=period,
        round_us=max(op.end_us for op in rounds),
        leave_us=max((op.end_us for op in leave), default=0),
    )


def _kind(kind: RoundKind) -> RoundKind:
    ops, period = _phase(kind.ops, repeats=True)
    return replace(kind, ops=ops, period_us=period, round_us=max(op.end_us for op in ops))


def _phase(ops: tuple[Op, ...], repeats: bool) -> tuple[tuple[Op, ...], int]:
    index = {op.id: i for i, op in enumerate(ops)}
    now: list[set[int]] = []
    before: list[set[int]] = []
    previous: dict[str, int] = {}
    for i, op in enumerate(ops):
        now.append({index[name] for name in op.after if name in index})
        names = [name[:-3] for name in op.after if name.endswith("@-1")]
        before.append({index[name] for name in names if name in index})
        if op.stream in previous:
            now[i].add(previous[op.stream])
        previous[op.stream] = i
    try:
        order = list(TopologicalSorter(dict(enumerate(now))).static_order())
    except CycleError:
        return ops, 0
    last = {op.stream: i for i, op in enumerate(ops)}
    ends = [0] * len(ops)
    starts = [0] * len(ops)
    for i in order:
        starts[i] = max((ends[j] for j in now[i]), default=0)
        ends[i] = starts[i] + max(0, ops[i].end_us - ops[i].start_us)
    late = [ends[j] - starts[i] for i in order for j in {*before[i], last[ops[i].stream]}]
    timed = (replace(op, start_us=a, end_us=b) for op, a, b in zip(ops, starts, ends, strict=True))
    return tuple(timed), max(0, *late) if repeats else 0


def _segments(plan: Plan) -> tuple[Segment, ...]:
    programs = {program.name: program for program in plan.programs}
    free: dict[str, int] = {}
    made = []
    for segment in plan.segments:
        program = programs[segment.program]
        claims = [*(f"d{d}" for d in segment.devices), *(f"t{t}" for t in program.tasks)]
        start = max((free.get(claim, 0) for claim in claims), default=0)
        every = [(program.period_us, program.round_us)]
        every += [(kind.period_us, kind.round_us) for kind in program.kinds]
        spans = [start, program.enter_us, program.leave_us]
        for kind, rounds in segment.kinds or ((0, segment.rounds),):
            period, round_us = every[kind] if kind < len(every) else every[0]
            spans += [(rounds - 1) * period, round_us]
        *_, end = accumulate(spans)
        free |= dict.fromkeys(claims, end)
        made.append(replace(segment, start_us=start, end_us=end))
    return tuple(made)


def _compute_us(plan: Plan) -> int:
    """The load of the busiest compute stream, which runs one op at a time."""
    programs = {program.name: program for program in plan.programs}
    load: dict[int, int] = {}
    for segment in plan.segments:
        for local, device in enumerate(segment.devices):
            program = programs[segment.program]
            every = [program.round, *(kind.ops for kind in program.kinds)]
            for kind, rounds in segment.kinds or ((0, segment.rounds),):
                for op in every[kind] if kind < len(every) else ():
                    if op.stream == f"{local}.compute":
                        us = max(0, op.end_us - op.start_us) * rounds
                        load[device] = load.get(device, 0) + us
    return max(load.values(), default=0)
