"""Tasks that cost the same on every kind of devices have one shape, and one search. What is found
is carried over to the kinds of devices where it fits, and to every task of the shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from planner.inputs import Problem
from planner.lowering import evaluating
from planner.rounds import SUFFIX
from planner.search import variants
from planner.search.task import Candidate
from planner.shards import Links, shape_of
from plans.schema import Op, Program
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
    were trained for other numbers of steps have other samples left; those that add gradients as
    before have programs that do."""
    grouped: dict[object, list[tuple[Task, ...]]] = {}
    for profiled in zip(*(kind.tasks for kind in problem.kinds), strict=True):
        name = profiled[0].name
        done = problem.done.get(name, 0) if profiled[0].lengths else 0
        sums = problem.additions.get(name)
        grouped.setdefault((done, sums, *map(shape_of, profiled)), []).append(profiled)
    return [Shape(tuple(group)) for group in grouped.values()]


def everywhere(problem: Problem, shape: Shape, place: int, found: Candidate) -> Candidate:
    """A shape's candidate, found on one kind of devices, with its programs on all kinds where it
    fits. One on several devices, or for samples with lengths, stays on its own kind."""
    if found.packed:
        return found
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
            evaluates[at] = evaluating(mine, Links.of(kind.device, kind.node), kind.device_bytes)
    return replace(found, programs=tuple(programs), evaluates=tuple(evaluates))


def named(problem: Problem, way: Candidate, task: Task) -> Candidate:
    """A shape's strategy for one of its tasks, as profiled on the kind that was searched.

    Candidates are counted only for the task that was searched. Programs on other kinds than the
    first that fits are called `name@kind`.
    """
    before = way.strategy.costs.task
    old = before.name
    if way.packed:  # as if it was measured at one size
        task = structs.replace(task, batches=before.batches, layers=before.layers)
    first = next(at for at, program in enumerate(way.programs) if program)

    def called(programs: Sequence[Program | None], suffix: str) -> Iterator[Program | None]:
        for at, program in enumerate(programs):
            kind = "" if at == first else f"@{problem.kinds[at].name}"
            mine = program if task.name == old else program and renamed(program, task.name)
            yield mine and structs.replace(mine, name=task.name + kind + suffix)

    return replace(
        way,
        strategy=replace(way.strategy, costs=replace(way.strategy.costs, task=task)),
        programs=tuple(called(way.programs, "")),
        candidates=way.candidates if task.name == old else 0,
        evaluates=tuple(called(way.evaluates if task.evaluation else (), SUFFIX)),
        alternatives=tuple(structs.replace(told, task=task.name) for told in way.alternatives),
    )


def renamed(program: Program, name: str) -> Program:
    """The program with its only task called so; buffers of a device have no task in their names."""
    (old,) = program.tasks

    def own(text: str) -> str:
        return name + text[len(old) :] if text.startswith(f"{old}.") else text

    def ops(of: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            structs.replace(
                op,
                id=own(op.id),
                after=tuple(map(own, op.after)),
                reads={role: own(buffer) for role, buffer in op.reads.items()},
                writes={role: own(buffer) for role, buffer in op.writes.items()},
            )
            for op in of
        )

    return structs.replace(
        program,
        name=name,
        tasks=(name,),
        buffers=tuple(structs.replace(b, name=own(b.name)) for b in program.buffers),
        enter=ops(program.enter),
        round=ops(program.round),
        leave=ops(program.leave),
        kinds=tuple(structs.replace(kind, ops=ops(kind.ops)) for kind in program.kinds),
    )
