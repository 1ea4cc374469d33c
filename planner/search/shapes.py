"""Ways to train every task: searched once for all tasks of one shape, on every kind of devices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from planner.errors import Infeasible, NoPlanFound, nearest
from planner.inputs import Effort, Kind, Problem
from planner.rounds import SUFFIX, evaluating
from planner.search import pool, variants
from planner.search.rename import renamed
from planner.search.shares import Need, shares
from planner.search.task import Candidate, Wide
from planner.search.variants import Found, Tried
from planner.shards import Links, shape_of
from plans.schema import Program
from profiles.schema import Evaluation, Task

_LATER = 0.25  # of the time, for what follows the search

Ways = list[list[Candidate]]
"""The strategies of every task, in order: the best on each kind of devices where it fits, then
those on several devices of a kind at once."""


Pipelines = Callable[[tuple[Kind, Task, int], int, Effort], Found]
"""The search for the best way to train a task on so many devices of a kind at once, with so many
bytes on the host; Infeasible where there is none. It must be picklable."""


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

    parts: into how many the host memory beside what is kept is divided (`shares`).
    """
    shapes = shapes_of(problem)
    # Where time is short, some of it is left for the bounds and for the timetable.
    effort = replace(effort, deadline=effort.deadline - effort.left * _LATER)
    needs = [Need.of(shape.first[0], len(shape.tasks)) for shape in shapes]
    rooms = shares(problem, needs, parts, proven=False)
    found = _each(problem, shapes, rooms, effort, jobs)
    if len(problem.tasks) > 1 and any(map(_short_of_host, found)):
        # The least that a shape needs on the host is what it is told when it has nothing there.
        least = replace(effort, limits=replace(effort.limits, search_ops=1))
        told = _each(problem, shapes, [0] * len(shapes), least, jobs)
        needs = [_least(need, own) for need, own in zip(needs, told, strict=True)]
        rooms = shares(problem, needs, parts, proven=True)
        found = _each(problem, shapes, rooms, effort, jobs)
    return _of_tasks(problem, shapes, found)


def widened(
    problem: Problem,
    ways: Ways,
    asked: Sequence[Wide],
    best: Pipelines,
    effort: Effort,
    jobs: int,
    parts: int | None = None,
) -> Ways:
    """The ways, with those on several devices at once that were asked for and that there are; tasks
    of one shape are searched once. Infeasible for a task without any.

    parts: as for `searched`.
    """
    shapes = shapes_of(problem)
    effort = replace(effort, deadline=effort.deadline - effort.left * _LATER)
    needs = [Need.of(shape.first[0], len(shape.tasks)) for shape in shapes]
    rooms = shares(problem, needs, parts, proven=False)
    bare = [replace(kind, tasks=()) for kind in problem.kinds]
    number = {task.name: at for at, shape in enumerate(shapes) for task, *_ in shape.tasks}
    wide = sorted({(number[one.task], one.kind, one.devices) for one in asked})
    given = [((bare[at], shapes[n].first[at], rooms[n]), count) for n, at, count in wide]
    effort = replace(effort, limits=effort.limits.among(len(wide)))
    found = pool.each(partial(_wide, best), given, effort, jobs)
    more: dict[str, list[Candidate]] = {task.name: [] for task in problem.tasks}
    errors: dict[str, list[Infeasible]] = {}
    late: dict[str, NoPlanFound] = {}
    for (at, place, _), one in zip(wide, found, strict=True):
        shape = shapes[at]
        try:
            if not isinstance(one, Candidate):
                raise one
            way = _everywhere(problem, shape, place, one)
        except Infeasible as error:  # also of what evaluates it
            errors.setdefault(shape.first[0].name, []).append(error)
            continue
        except NoPlanFound as error:
            late[shape.first[0].name] = error
            continue
        for profiled in shape.tasks:
            more[profiled[place].name].append(_named(problem, way, profiled[place]))
    every = {t.name: [*own, *more[t.name]] for own, t in zip(ways, problem.tasks, strict=True)}
    for name in late:
        if not every[name]:
            raise late[name]
    short = [nearest(errors[name]) for name in errors if not every[name]]
    if short:
        raise max(short, key=lambda failure: failure.smallest)
    return [*every.values()]


def _wide(best: Pipelines, asked: tuple[tuple[Kind, Task, int], int], effort: Effort) -> Tried:
    """The result of the search, which may be nothing: the task may have a plan without it."""
    try:
        return best(*asked, effort)
    except (Infeasible, NoPlanFound) as error:
        return error


def baselines(problem: Problem) -> Ways:
    """Every task as Hydra trains it."""
    shapes = shapes_of(problem)
    found = [list(map(variants.baseline, problem.kinds, shape.first)) for shape in shapes]
    return _of_tasks(problem, shapes, found)


def _each(
    problem: Problem, shapes: Sequence[Shape], rooms: Sequence[int], effort: Effort, jobs: int
) -> list[list[Found]]:
    """The best of every shape with so much host memory, on every kind, or why there is none."""
    bare = [replace(kind, tasks=()) for kind in problem.kinds]  # for other processes
    asked = [
        (kind, task, room)
        for shape, room in zip(shapes, rooms, strict=True)
        for kind, task in zip(bare, shape.first, strict=True)
    ]
    found = iter(pool.each(variants.best, asked, effort, jobs))
    return [[next(found) for _ in shape.first] for shape in shapes]


def _short_of_host(found: Sequence[Found]) -> bool:
    """True if a shape has no plan, and would have one with more memory on the host."""
    resources = [one.resource if isinstance(one, Infeasible) else None for one in found]
    return None not in resources and "host" in resources


def _least(need: Need, told: Sequence[Found]) -> Need:
    errors = [one for one in told if isinstance(one, Infeasible) and one.resource == "host"]
    return replace(need, least=min((one.smallest for one in errors), default=need.kept))


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
    """A shape's candidate of one kind, with its programs on all kinds that it fits; one for several
    devices is for its own kind."""
    strategy = found.strategy
    programs: list[Program | None] = [None] * len(problem.kinds)
    programs[place] = found.program
    for at, (kind, task) in enumerate(zip(problem.kinds, shape.first, strict=True)):
        if at != place and found.program.devices == 1:
            programs[at] = variants.program_on(kind, strategy, task)
    evaluates: list[Program | None] = [None] * len(programs)
    for at, task in enumerate(shape.first):
        if shape.evaluation and programs[at]:
            wanted = structs.replace(task, evaluation=shape.evaluation)
            mine = replace(strategy, costs=replace(strategy.costs, task=wanted))
            kind = problem.kinds[at]
            evaluates[at] = evaluating(mine, Links.of(kind.device), kind.device_bytes)
    return replace(found, programs=tuple(programs), evaluates=tuple(evaluates))


def _named(problem: Problem, way: Candidate, task: Task) -> Candidate:
    """A shape's strategy for one of its tasks, as profiled on the kind that was searched.

    Candidates are counted only for the task that was searched. Programs on other kinds than the
    first that fits are called `name@kind`.
    """
    old = way.strategy.costs.task.name
    first = next(at for at, program in enumerate(way.programs) if program)

    def called(programs: Sequence[Program | None], suffix: str) -> Iterator[Program | None]:
        for at, program in enumerate(programs):
            kind = "" if at == first else f"@{problem.kinds[at].name}"
            mine = program if task.name == old else program and renamed(program, task.name)
            yield mine and structs.replace(mine, name=task.name + kind + suffix)

    return Candidate(
        replace(way.strategy, costs=replace(way.strategy.costs, task=task)),
        tuple(called(way.programs, "")),
        way.candidates if task.name == old else 0,
        way.complete,
        tuple(called(way.evaluates if task.evaluation else (), SUFFIX)),
        tuple(structs.replace(told, task=task.name) for told in way.alternatives),
    )
