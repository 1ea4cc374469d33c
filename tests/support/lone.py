"""The plan of one round: its task alone on one device, not yet proven."""

from planner.builder import assemble, certified
from planner.inputs.problem import Effort, Problem
from planner.lowering.round import Round
from planner.search.task import Candidate
from plans.prediction import Bound
from plans.schema import Plan, Segment
from plans.timing import duration_us


def lone(problem: Problem, made: Round) -> Plan:
    """The round for every step of its task."""
    program, steps = made.program(), made.strategy.costs.task.steps
    segment = Segment(program.name, (0,), steps, 0, duration_us(program, steps))
    way = Candidate(made.strategy, (program,))
    plan = assemble(problem, [way], [segment], "gantry", Effort(0, 0))
    return certified(problem, plan, [Bound("none", 0)])
