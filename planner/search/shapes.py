"""Tasks that cost the same on every kind of devices have one shape, and one search."""

from dataclasses import dataclass

from planner.inputs import Problem
from planner.shards import shape_of
from profiles.schema import Evaluation, Task


@dataclass(frozen=True)
class Shape:
    """Tasks that cost the same on every kind of devices, so that one search does for all.

    tasks: each as profiled on every kind; the first is the one that is searched.
    """

    tasks: tuple[tuple[Task, ...], ...]

    @property
    def first(self) -> tuple[Task, ...]:
        return self.tasks[0]

    @property
    def evaluation(self) -> Evaluation | None:
        """That of the first task that is evaluated."""
        return next((task.evaluation for task, *_ in self.tasks if task.evaluation), None)


def shapes_of(problem: Problem) -> list[Shape]:
    """The problem's tasks by their shapes, in order of their first tasks. Those with lengths that
    were trained for other numbers of steps have other samples left."""
    grouped: dict[object, list[tuple[Task, ...]]] = {}
    for profiled in zip(*(kind.tasks for kind in problem.kinds), strict=True):
        done = problem.done.get(profiled[0].name, 0) if profiled[0].lengths else 0
        grouped.setdefault((done, *map(shape_of, profiled)), []).append(profiled)
    return [Shape(tuple(group)) for group in grouped.values()]
