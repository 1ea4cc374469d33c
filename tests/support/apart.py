"""Plans of one task alone, trained in a given way, tied layers in several shards among them."""

from msgspec import structs
from support import synthetic

from planner.builder import assemble, certified
from planner.inputs.problem import DeviceGroup, Effort, Problem
from planner.lowering import PipelineStrategy
from planner.lowering.round import DeviceRound
from planner.search.local_search import resettled
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.shard_cost import Links
from planner.shards.strategy import Strategy
from plans import prove
from plans.prediction import Bound
from plans.schema import Plan, Program, Segment
from plans.timing import duration_us
from profiles.schema import Task


def strategy(
    task: Task, mode: Mode, microbatch: int, cuts: tuple[int, ...], block: int = 1 << 16
) -> Strategy:
    """All shards in the same mode, or the nearest that is possible; the block begins at a shard,
    the last one at most."""
    costs, last = TaskCosts(task, microbatch, apart=True), len(cuts) - 2
    return resettled(Strategy(costs, cuts, (mode,) * (last + 1), min(block, last)))


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


def planned(asked: Problem, made: Strategy) -> Plan:
    """A proven plan that trains the task in this way, in the least memory."""
    plan = lone(asked, DeviceRound(made, Links.of(asked.device)))
    prove(plan)
    return plan


def synthetic_task(ties: tuple[tuple[int, ...], ...], **options: int) -> Task:
    """A chain of six layers that tie what the first of each group holds."""
    task = synthetic.task("a", layers=6, seed=1, ties=ties, **options)
    sizes = tuple(task.layers[group[0]].grad_bytes for group in ties)
    return structs.replace(task, tie_bytes=sizes)


def problem(task: Task, device_bytes: int = 1 << 30) -> Problem:
    machine = synthetic.machine(usable_bytes=1 << 40, bytes_per_s=1 << 30)
    return Problem((DeviceGroup("cpu", (task,), machine.devices[0], 1, device_bytes),), 1 << 40)
