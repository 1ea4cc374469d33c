"""How long a step of a plan is once the run is steady."""

from plans.schema import Plan, Program, Segment
from plans.timing.kinds import kinds_of, runs
from plans.timing.phases import duration_us


def step_us(plan: Plan) -> int:
    """Steady time of the busiest device, per step of the task with the most steps: with one task
    its period, or the mean one where rounds are of several kinds.

    Evaluations are left out, and what segments take to begin and to end, but not where a task goes
    on with another program: it does so again and again.
    """
    busy, last = [0] * len(plan.devices), dict[int, Program]()
    for segment in plan.segments:
        program = plan.program(segment.program)
        for device in () if program.evaluates else segment.devices:
            before = last.get(device, program)
            busy[device] += rounds_us(program, segment)
            if before.tasks == program.tasks and before is not program:
                busy[device] += _beside_us(program, segment)
            last[device] = program
    return max(busy) // max(task.steps for task in plan.tasks)


def rounds_us(program: Program, segment: Segment) -> int:
    """The time of a segment's rounds, each run of which begins when the one before it has ended."""
    whole = duration_us(program, segment.rounds, segment.kinds)
    return whole - _beside_us(program, segment)


def _beside_us(program: Program, segment: Segment) -> int:
    """The time of a segment beside its periods: to enter, to leave, and what its last round takes
    longer than one."""
    kind = kinds_of(program)[runs(segment)[-1][0]]
    return program.enter_us + program.leave_us + kind.round_us - kind.period_us
