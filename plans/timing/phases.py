"""Phases of a segment: enter, each run of rounds of one kind, and leave."""

from typing import Literal, NamedTuple

from plans.schema import Op, Plan, Program, RoundKind, Segment
from plans.timing.kinds import Runs, kinds_of, runs

PhaseName = Literal["enter", "round", "leave"]


class Phase(NamedTuple):
    """Ops of a segment that repeat `rounds` times: from `start_us` on, a period (above 0) apart.

    first: the number of the first of these rounds in the segment; kind: theirs."""

    name: PhaseName
    ops: tuple[Op, ...]
    start_us: int
    period_us: int
    rounds: int
    first: int = 0
    kind: int = 0


def phases(program: Program, segment: Segment) -> tuple[Phase, ...]:
    """Enter, each run of rounds of one kind, and leave of a segment."""
    kinds, begin, first = kinds_of(program), segment.start_us + (segment.read_us or 0), 0
    us = begin + program.enter_us
    # A period is above 0 also where all ops of a round take no time.
    found = [Phase("enter", program.enter, begin, max(program.period_us, 1), 1)]
    for kind, rounds in runs(segment):
        one = kinds[kind]
        found.append(Phase("round", one.ops, us, max(one.period_us, 1), rounds, first, kind))
        us, first = us + _run_us(one, rounds), first + rounds
    return (*found, Phase("leave", program.leave, us, max(program.period_us, 1), 1))


def duration_us(program: Program, rounds: int, kinds: Runs = ()) -> int:
    """Predicted time of a segment of so many rounds, of these kinds in turn."""
    every = kinds_of(program)
    middle = sum(_run_us(every[kind], count) for kind, count in kinds or ((0, rounds),))
    return program.enter_us + middle + program.leave_us


def _run_us(kind: RoundKind, rounds: int) -> int:
    """Predicted time of so many rounds of one kind in a row."""
    return (rounds - 1) * kind.period_us + kind.round_us


def rounds_us(program: Program, segment: Segment) -> int:
    """The time of a segment's rounds, each run of which begins when the one before it has ended."""
    whole = duration_us(program, segment.rounds, segment.kinds)
    return whole - beside_us(program, segment)


def beside_us(program: Program, segment: Segment) -> int:
    """The time of a segment beside its periods: to enter, to leave, and what its last round takes
    longer than one."""
    kind = kinds_of(program)[runs(segment)[-1][0]]
    return program.enter_us + program.leave_us + kind.round_us - kind.period_us


def kind_rounds(plan: Plan, program: Program) -> list[int]:
    """For each kind of rounds of a program how many all its segments have."""
    found = [0] * (1 + len(program.kinds))
    for segment in plan.segments:
        for kind, rounds in runs(segment) if segment.program == program.name else ():
            found[kind] += rounds
    return found


def longest(plan: Plan) -> Program:
    """The program whose rounds take longest in all segments. One that evaluates only where no other
    is left."""
    busy = {program.name: (not program.evaluates, 0) for program in plan.programs}
    for segment in plan.segments:
        trains, us = busy[segment.program]
        busy[segment.program] = trains, us + rounds_us(plan.program(segment.program), segment)
    return plan.program(max(busy, key=lambda name: busy[name]))
