"""The named bounds on the makespan: no plan that the executor could run ends sooner.

Each takes a bound on a step (`step.TaskBound`) for all steps of a task, with its evaluations, and
combines the tasks:

    evenly     all of them shared out to all devices, in any parts  (`configuration.even_us`)
    longest    the one that takes longest, on the gang where it takes least
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.bounds.configuration import Column, Demand, even_us
from planner.bounds.step import Bounds, StepName
from planner.inputs import Problem
from planner.rounds import least_us
from plans.prediction import Bound


@dataclass(frozen=True)
class Named:
    """A bound on the makespan. step: the bound on a step that it takes. combined: how it combines
    tasks, by the larger where in both ways. evaluated: their evaluations count."""

    name: str
    step: StepName
    combined: Sequence[Literal["evenly", "longest"]]
    says: str
    evaluated: bool = True

    def us(self, demand: Demand, columns: Sequence[Column]) -> int:
        """The bound, from what every task takes on every gang."""
        ways = {"evenly": lambda: even_us(demand, columns), "longest": lambda: _longest(columns)}
        return max(ways[way]() for way in self.combined)


NAMED = (
    Named(
        "compute",
        "compute",
        ("evenly",),
        "one forward and one backward of every layer, and the norms of its gradients where updates "
        "wait for them, spread evenly over the devices",
    ),
    Named(
        "link",
        "link",
        ("evenly",),
        "bytes that cannot stay on a device cross its link every round",
        evaluated=False,
    ),
    Named(
        "load",
        "load",
        ("longest",),
        "compute, link, host and memory at once, in any order, as a linear program; of a task that "
        "has programs for several devices, with what all of them have",
    ),
    Named(
        "fill-and-drain",
        "fill-and-drain",
        ("evenly", "longest"),
        "for tasks on several devices, by the size of microbatches: all work shared out evenly, "
        "and no less than one microbatch's way up and down and the update that its next one waits "
        "for; large microbatches take less in all but a longer way. For all places, replicas and "
        "orders",
    ),
    Named(
        "phase",
        "phase",
        ("evenly", "longest"),
        "that of load for rounds that take all microbatches of a shard in turn, or those of a "
        "block one by one, and whose gradients wait for norms where they are updated; for several "
        "devices it is that of fill and drain",
    ),
    Named(
        "critical-path",
        "compute",
        ("longest",),
        "the compute of the longest task, one step at a time; on several devices the part of each, "
        "and no less than a microbatch's way up and down",
    ),
)

NAMED_BY_LENGTHS = (
    Named(
        "compute", "compute", ("evenly",), "every sample by itself, spread evenly over the devices"
    ),
    Named(
        "critical-path",
        "longest",
        ("longest",),
        "the longest task, one step at a time, in each of which its longest sample goes through "
        "all layers and back",
    ),
)


def named_bounds(
    problem: Problem, bounds: Sequence[Bounds], judged: Mapping[str, int], *, phased: bool
) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs, from those of the tasks (`bounds`).

    judged: the least time of the evaluations of tasks with lengths. phased: the plan is of the kind
    that the phase bound is about.
    """
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
            Column(
                task.name,
                kind.name,
                task.steps * one.us(named.step) + evaluating * named.evaluated,
                devices,
            )
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
    return judged[task.name] if task.lengths else least_us(task, problem.done.get(task.name, 0))


def _longest(columns: Iterable[Column]) -> int:
    """The task that takes longest, each on the gang where it takes least."""
    least: dict[str, int] = {}
    for one in columns:
        least[one.task] = min(one.us, least.get(one.task, one.us))
    return max(least.values())
