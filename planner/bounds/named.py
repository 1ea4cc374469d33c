"""The named bounds on the makespan: no plan that the executor could run ends sooner.

Each takes a bound on a step (`task`, `lengths`) for all steps of a task and its evaluations, and
combines the tasks:

    evenly     all of them shared out to all devices, in any parts  (`configuration.even_us`)
    longest    the one that takes longest, on the gang where it takes least
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.bounds.configuration import Column, Demand, even_us
from planner.bounds.lengths import evaluations_us
from planner.bounds.task import Bounds, StepName
from planner.inputs import Problem
from planner.shards import TaskCosts, microbatch_costs
from plans.order import due_steps
from plans.prediction import Bound
from profiles.schema import Task


@dataclass(frozen=True)
class Named:
    """A bound on the makespan. step: the bound on a step that it takes, and its name where it has
    no other. evenly, longest: how it combines tasks, by the larger where in both ways."""

    step: StepName
    evenly: bool = False
    longest: bool = False
    other: str = ""

    @property
    def name(self) -> str:
        return self.other or self.step

    def us(self, demand: Demand, columns: Sequence[Column]) -> int:
        """The bound, from what every task takes on every gang."""
        shared = even_us(demand, columns) if self.evenly else 0
        return max(shared, _longest(columns)) if self.longest else shared


NAMED = (
    Named("compute", evenly=True),  # all forwards, backwards and norms
    Named("fill-and-drain", evenly=True, longest=True),  # and a microbatch's way up and down
    Named("phase", evenly=True, longest=True),  # compute, links, host and memory of phases
    Named("compute", longest=True, other="critical-path"),  # one step at a time
)

NAMED_BY_LENGTHS = (
    Named("compute", evenly=True),  # every sample by itself
    Named("longest", longest=True, other="critical-path"),  # one step at a time
)


def named_bounds(problem: Problem, bounds: Sequence[Bounds], *, phased: bool) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs, from those of the tasks (`bounds`).

    phased: the plan is of the kind that the phase bound is about.
    """
    judged = evaluations_us(problem)
    demand = Demand({kind.name: kind.count for kind in problem.kinds})
    # Segments of a device never overlap, so its evaluations come on top of whatever is trained.
    every = [
        (task, problem.kinds[place], devices, one, evaluating // devices)
        for number, (task, of) in enumerate(zip(problem.tasks, bounds, strict=True))
        for (place, devices), one in of.items()
        for evaluating in [_evaluating_us(problem, place, number, judged)]
    ]

    def columns(named: Named) -> list[Column]:
        """All steps of every task on every gang."""
        return [
            Column(task.name, kind.name, task.steps * one.us(named.step) + evaluating, devices)
            for task, kind, devices, one, evaluating in every
        ]

    idle = set[str]() if phased else {"phase"}
    if not any(devices > 1 for _, _, devices, _, _ in every):
        idle.add("fill-and-drain")
    by_lengths = all(task.lengths for task in problem.tasks)
    taken = NAMED_BY_LENGTHS if by_lengths else [one for one in NAMED if one.name not in idle]
    return tuple(Bound(one.name, one.us(demand, columns(one))) for one in taken)


def _evaluating_us(problem: Problem, place: int, number: int, judged: Mapping[str, int]) -> int:
    """The least compute time of a task's evaluations on a kind of devices."""
    task = problem.kinds[place].tasks[number]
    return judged[task.name] if task.lengths else _least_us(task, problem.done.get(task.name, 0))


def _least_us(task: Task, done: int) -> int:
    """The least compute time of all evaluations of a task, after `done` steps trained before."""
    if task.evaluation is None:
        return 0
    each = min(costs.microbatches * _forward_us(costs) for costs in microbatch_costs(task))
    count = len(due_steps(task.evaluation, done, task.steps))
    return count * task.evaluation.batches * each


def _forward_us(costs: TaskCosts) -> int:
    """A microbatch through all layers, however they are cut."""
    return sum(
        min(c.forward.median_us, max(0, c.recompute_backward.median_us - c.backward.median_us))
        for c in costs.costs
    )


def _longest(columns: Iterable[Column]) -> int:
    """The task that takes longest, each on the gang where it takes least."""
    least: dict[str, int] = {}
    for one in columns:
        least[one.task] = min(one.us, least.get(one.task, one.us))
    return max(least.values())
