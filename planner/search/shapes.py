"""Ways to train every task: searched once for all tasks of one shape, on every kind of devices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from planner.errors import Infeasible, nearest
from planner.inputs import Effort, Problem
from planner.rounds import SUFFIX, evaluating
from planner.search import pool, variants
from planner.search.rename import renamed
from planner.search.shares import Need, shares
from planner.search.task import Candidate
from planner.shards import Links, shape_of
from plans.schema import Program
from profiles.schema import Evaluation, Task

_LATER = 0.25  # of the time, for what follows the search

Ways = list[list[Candidate]]
"""The strategies of every task, in order: the best on each kind of devices where it fits."""

Found = Candidate | Infeasible


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
    """The problem's tasks by their shapes, in order of their first tasks."""
    grouped: dict[object, list[tuple[Task, ...]]] = {}
    for profiled in zip(*(kind.tasks for kind in problem.kinds), strict=True):
        grouped.setdefault(tuple(map(shape_of, profiled)), []).append(profiled)
    return [Shape(tuple(group)) for group in grouped.values()]


def searched(problem: Problem, effort: Effort, jobs: int, parts: int | None = None) -> Ways:
    """The best that is found; Infeasible or NoPlanFound when a task has nothing on any kind.

    parts: into how many the host memory beside what is kept is divided, by default one for each
    task that trains at the same time.
    """
    shapes = shapes_of(problem)
    needs = [Need.of(shape.first[0]) for shape in shapes]
    # Where time is short, some of it is left for the bounds and for the timetable.
    effort = replace(effort, deadline=effort.deadline - effort.left * _LATER)
    found = _each(problem, shapes, _rooms(problem, shapes, needs, parts), effort, jobs)
    if len(problem.tasks) > 1 and any(map(_short_of_host, found)):
        needs = _least_needs(problem, shapes, needs, effort, jobs)
        rooms = _rooms(problem, shapes, needs, parts, proven=True)
        found = _each(problem, shapes, rooms, effort, jobs)
    return _of_tasks(problem, shapes, found)


def baselines(problem: Problem) -> Ways:
    """Every task as Hydra trains it."""
    shapes = shapes_of(problem)
    found = [
        [_baseline(problem, place, task) for place, task in enumerate(shape.first)]
        for shape in shapes
    ]
    return _of_tasks(problem, shapes, found)


def _baseline(problem: Problem, place: int, task: Task) -> Found:
    try:
        return variants.baseline(problem.kinds[place], task)
    except Infeasible as error:
        return error


def _each(
    problem: Problem, shapes: Sequence[Shape], rooms: Sequence[int], effort: Effort, jobs: int
) -> list[list[Found]]:
    """The best of every shape with so much host memory, on every kind, or why there is none."""
    bare = replace(problem, kinds=tuple(replace(kind, tasks=()) for kind in problem.kinds))
    items = [
        (place, task, room)
        for shape, room in zip(shapes, rooms, strict=True)
        for place, task in enumerate(shape.first)
    ]
    found = iter(pool.each(partial(_best, bare), items, effort, jobs))
    return [[next(found) for _ in shape.first] for shape in shapes]


def _best(problem: Problem, item: tuple[int, Task, int], effort: Effort) -> Found:
    place, task, room = item
    try:
        return variants.best(problem.kinds[place], task, room, effort)
    except Infeasible as error:
        return error


def _rooms(
    problem: Problem,
    shapes: Sequence[Shape],
    needs: Sequence[Need],
    parts: int | None,
    *,
    proven: bool = False,
) -> list[int]:
    """The host memory that every task of a shape has at least."""
    of = {task.name: at for at, shape in enumerate(shapes) for task, *_ in shape.tasks}
    places = [of[task.name] for task in problem.tasks]
    rooms = shares(problem, [needs[at] for at in places], parts, proven=proven)
    least: dict[int, int] = {}
    for at, room in zip(places, rooms, strict=True):
        least[at] = min(room, least.get(at, room))
    return [least[at] for at in range(len(shapes))]


def _short_of_host(found: Sequence[Found]) -> bool:
    """True if a shape has no plan, and would have one with more memory on the host."""
    failures = [one for one in found if isinstance(one, Infeasible)]
    return len(failures) == len(found) and any(one.resource == "host" for one in failures)


def _least_needs(
    problem: Problem, shapes: Sequence[Shape], needs: Sequence[Need], effort: Effort, jobs: int
) -> list[Need]:
    """The least that every shape needs on the host: what it is told when it has nothing there."""
    short = replace(effort, limits=replace(effort.limits, search_ops=1))
    least = []
    for need, found in zip(
        needs, _each(problem, shapes, [0] * len(shapes), short, jobs), strict=True
    ):
        named = [
            one.smallest for one in found if isinstance(one, Infeasible) and one.resource == "host"
        ]
        least.append(replace(need, least=min(named, default=need.kept)))
    return least


def _of_tasks(problem: Problem, shapes: Sequence[Shape], found: Sequence[Sequence[Found]]) -> Ways:
    """The strategies of every task. Infeasible for the shape that needs most of those that fit
    nowhere, so that what it names does for all."""
    short = [
        nearest(one for one in own if isinstance(one, Infeasible))
        for own in found
        if all(isinstance(one, Infeasible) for one in own)
    ]
    if short:
        raise max(short, key=lambda failure: failure.smallest)
    ways: dict[str, list[Candidate]] = {task.name: [] for task in problem.tasks}
    for shape, own in zip(shapes, found, strict=True):
        for place, one in enumerate(own):
            if isinstance(one, Infeasible):
                continue
            way = _everywhere(problem, shape, place, one)
            for profiled in shape.tasks:
                ways[profiled[place].name].append(_named(problem, way, profiled[place]))
    return [*ways.values()]


def _everywhere(problem: Problem, shape: Shape, place: int, found: Candidate) -> Candidate:
    """A shape's candidate of one kind, with its programs on all kinds that it fits."""
    strategy = found.strategy
    programs = tuple(
        found.program if at == place else variants.program_on(kind, strategy, task)
        for at, (kind, task) in enumerate(zip(problem.kinds, shape.first, strict=True))
    )
    evaluates: list[Program | None] = [None] * len(programs)
    for at, task in enumerate(shape.first):
        if shape.evaluation and programs[at]:
            wanted = structs.replace(task, evaluation=shape.evaluation)
            mine = replace(strategy, costs=replace(strategy.costs, task=wanted))
            kind = problem.kinds[at]
            evaluates[at] = evaluating(mine, Links.of(kind.device), kind.device_bytes)
    return replace(found, programs=programs, evaluates=tuple(evaluates))


def _named(problem: Problem, way: Candidate, task: Task) -> Candidate:
    """A shape's strategy for one of its tasks, as profiled on the kind that was searched.

    Candidates are counted only for the task that was searched. Programs on other kinds than the
    first that fits are called `name@kind`.
    """
    old = way.strategy.costs.task.name
    first = next(at for at, program in enumerate(way.programs) if program)

    def called(at: int, program: Program | None, suffix: str = "") -> Program | None:
        if program is None:
            return None
        name = task.name if at == first else f"{task.name}@{problem.kinds[at].name}"
        mine = program if task.name == old else renamed(program, {old: task.name})
        return structs.replace(mine, name=name + suffix)

    evaluates = enumerate(way.evaluates if task.evaluation else ())
    return Candidate(
        replace(way.strategy, costs=replace(way.strategy.costs, task=task)),
        tuple(called(at, program) for at, program in enumerate(way.programs)),
        way.candidates if task.name == old else 0,
        way.complete,
        tuple(called(at, program, SUFFIX) for at, program in evaluates),
    )
