"""The plan of one program: its task alone, not yet proven."""

from planner.builder import assemble, certified
from planner.inputs.problem import Effort, Problem
from planner.lowering import PipelineStrategy
from planner.lowering.round import DeviceRound
from planner.search.task import Candidate
from planner.shards.strategy import Strategy
from plans.prediction import Bound
from plans.schema import Plan, Program, Segment
from plans.timing import duration_us


def lone(problem: Problem, made: DeviceRound) -> Plan:
    """The round for every step of its task."""
    return alone(problem, made.strategy, made.program())


def alone(problem: Problem, strategy: Strategy | PipelineStrategy, program: Program) -> Plan:
    """The program for every step of its task, on the first devices."""
    steps = strategy.costs.task.steps
    us, devices = duration_us(program, steps), tuple(range(program.devices))
    segment = Segment(program.name, devices, steps, 0, us)
    plan = assemble(problem, [Candidate(strategy, (program,))], [segment], "gantry", Effort(0, 0))
    return certified(problem, plan, [Bound("none", 0)])
