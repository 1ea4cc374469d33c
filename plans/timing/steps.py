"""How long a step of a plan is once the run is steady."""

from plans.schema import Plan, Program
from plans.timing.phases import beside_us, rounds_us


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
                busy[device] += beside_us(program, segment)
            last[device] = program
    return max(busy) // max(task.steps for task in plan.tasks)
