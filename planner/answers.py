"""Ways to train every task: searched once for all tasks of one shape, on every kind of device.

Where nothing but the makespan counts, every shape is first looked at quickly; `worth` says which
of them are worth the full search.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from msgspec import structs

from planner import hydra, workers
from planner.apart import best_of
from planner.bounds import Bounds, TaskBound, task_bound
from planner.choice import Choice
from planner.costs import Links, castable, shape_of
from planner.errors import Infeasible, NoPlanFound, nearest
from planner.evaluation import SUFFIX, evaluating
from planner.hydra import HydraChoice
from planner.names import renamed
from planner.problem import Effort, Problem
from planner.rounds import Round
from planner.search import OPS, Found, Search, short_host
from planner.shares import Need, shares
from planner.store import least_bytes
from planner.terms import scratch_bytes
from plans.metrics import duration_us
from plans.schema import Program
from profiles.schema import Task

_FULL = 6  # shapes that are searched with full effort; more of them share it
_QUICK = 3_000  # simulated at most for a first look at a shape
_LATER = 0.25  # of the time, for what follows the search

_WHOLE = 6  # divisions of the plans for a bound, of which a first look makes none

Key = tuple[int, int]  # a kind of devices, and which of the shapes that tasks have on it


@dataclass(frozen=True)
class Answer:
    """One task's choice and program, and how it was found.

    kind: the place of the kind of devices that it was found for. others: the programs of the same
    choice on other kinds, by their places. evaluates: those that evaluate, by the names of the
    programs that train.
    """

    choice: Choice | HydraChoice
    program: Program
    candidates: int
    complete: bool
    kind: int = 0
    others: Mapping[int, Program] = field(default_factory=dict)
    evaluates: Mapping[str, Program] = field(default_factory=dict)

    def programs(self, kinds: int) -> tuple[Program | None, ...]:
        """On each of so many kinds of devices, None where the choice does not fit."""
        every = {**self.others, self.kind: self.program}
        return tuple(every.get(kind) for kind in range(kinds))


@dataclass(frozen=True)
class Shapes:
    """Tasks that cost the same on a kind of devices have one key there.

    of: every task's keys, one for each kind. first: of the tasks of a key.
    """

    of: Mapping[str, tuple[Key, ...]]
    first: Mapping[Key, Task]

    @classmethod
    def among(cls, problem: Problem) -> "Shapes":
        of: dict[str, list[Key]] = {task.name: [] for task in problem.tasks}
        first: dict[Key, Task] = {}
        for place, kind in enumerate(problem.kinds):
            numbers: dict[object, int] = {}
            for task in kind.tasks:
                key = place, numbers.setdefault(shape_of(task), len(numbers))
                of[task.name].append(key)
                first.setdefault(key, task)
        return cls({name: tuple(keys) for name, keys in of.items()}, first)


@dataclass(frozen=True)
class Own:
    """What was found for the shapes that fit their kind of devices; rough: those that were only
    looked at quickly. others: programs of what was found for one key on the kind of another."""

    problem: Problem
    shapes: Shapes
    of: Mapping[Key, Answer]
    bounds: Mapping[Key, TaskBound]
    others: Mapping[tuple[Key, Key], Program]
    rooms: Mapping[Key, int]
    rough: tuple[Key, ...] = ()
    _evaluates: dict[tuple[Key, int], Program] = field(default_factory=dict, compare=False)

    def able(self, task: str, kind: int) -> bool:
        """Whether a task can be trained on a kind."""
        return self.shapes.of[task][kind] in self.of

    def task_bounds(self) -> list[Bounds]:
        """Of every task on every kind; None where it does not fit."""
        tasks = self.problem.tasks
        return [tuple(map(self.bounds.get, self.shapes.of[task.name])) for task in tasks]

    def answers(self, task: Task) -> list[Answer]:
        """What was found for the task, on each kind where it fits."""
        keys = self.shapes.of[task.name]
        return [self._named(task, key, keys) for key in keys if key in self.of]

    def _named(self, task: Task, key: Key, keys: Iterable[Key]) -> Answer:
        """What was found for a task of the same shape, for this one; what was searched is counted
        once."""
        answer = self.of[key]
        own = answer
        old, name = answer.choice.costs.task.name, task.name
        made = {to[0]: self.others[key, to] for to in keys if (key, to) in self.others}
        if name != old:
            profiled = next(t for t in self.problem.kinds[key[0]].tasks if t.name == name)
            costs = replace(answer.choice.costs, task=profiled)
            choice = replace(answer.choice, costs=costs)
            program = renamed(answer.program, {old: name})
            answer = Answer(choice, program, 0, answer.complete, answer.kind)
            made = {place: renamed(other, {old: name}) for place, other in made.items()}
        every = sorted([*made, answer.kind])
        kinds = self.problem.kinds
        labels = {place: f"{name}@{kinds[place].name}" for place in every[1:]}
        called = {place: labels.get(place, name) for place in every}
        evaluates = {}
        for place in every if task.evaluation else ():
            program = renamed(self._evaluating(own, key, place), {old: name})
            evaluates[called[place]] = _called(program, called[place] + SUFFIX)
        return replace(
            answer,
            program=_called(answer.program, called[answer.kind]),
            others={place: _called(other, called[place]) for place, other in made.items()},
            evaluates=evaluates,
        )

    def _evaluating(self, answer: Answer, key: Key, place: int) -> Program:
        """The program that evaluates what was found for a key, on a kind of devices."""
        if (key, place) not in self._evaluates:
            kind, choice = self.problem.kinds[place], answer.choice
            if place != answer.kind:
                name = choice.costs.task.name
                profiled = next(t for t in kind.tasks if t.name == name)
                costs = replace(choice.costs, task=profiled)
                choice = replace(choice, costs=costs)
            links = Links.of(kind.device)
            self._evaluates[key, place] = evaluating(choice, links, kind.device_bytes)
        return self._evaluates[key, place]


def _called(program: Program, name: str) -> Program:
    return program if program.name == name else structs.replace(program, name=name)


def found(problem: Problem, effort: Effort, jobs: int) -> list[Answer]:
    """The best that is found for every task on the only kind of devices; Infeasible or NoPlanFound
    when there is nothing."""
    own = searched(problem, effort, jobs)
    return [own.answers(task)[0] for task in problem.tasks]


def searched(
    problem: Problem, effort: Effort, jobs: int, *, quick: bool = False, parts: int | None = None
) -> Own:
    """The best that is found for every shape and its bounds, or with `quick` what a first look
    gives where there are several; Infeasible or NoPlanFound when a task has nothing on any kind.

    parts: into how many the host memory beside what is kept is divided, by default one for each
    task that trains at the same time.
    """
    shapes = Shapes.among(problem)
    keys = tuple(shapes.first)
    look = _Look(_QUICK, 0) if quick and len(keys) > 1 else _full(shapes)
    rooms = shares(problem, [Need.of(shapes.first[keys[0]]) for keys in shapes.of.values()], parts)
    made = _found(problem, shapes, keys, look, _by_key(shapes, rooms), effort, jobs)
    if len(problem.tasks) > 1 and _short_of_host(shapes, made):
        needs = _needs(problem, shapes, effort, jobs)
        rooms = shares(problem, needs, parts, proven=True)
        made = _found(problem, shapes, keys, look, _by_key(shapes, rooms), effort, jobs)
    rough = keys if look.divisions == 0 else ()
    return _own(problem, shapes, made, _by_key(shapes, rooms), None, rough)


def _by_key(shapes: Shapes, rooms: Sequence[int]) -> dict[Key, int]:
    """The least that every task of a key has."""
    found: dict[Key, int] = {}
    for keys, room in zip(shapes.of.values(), rooms, strict=True):
        for key in keys:
            found[key] = min(room, found.get(key, room))
    return found


def _short_of_host(shapes: Shapes, made: "Mapping[Key, Looked]") -> bool:
    """True if some task has no plan, and would have one with more memory on the host."""
    failed = {key: one for key, (one, _) in made.items() if isinstance(one, Infeasible)}
    return any(
        all(key in failed for key in keys) and any(failed[k].resource == "host" for k in keys)
        for keys in shapes.of.values()
    )


def _needs(problem: Problem, shapes: Shapes, effort: Effort, jobs: int) -> list[Need]:
    """The least that every task needs on the host: what it would be told without any."""
    keys = tuple(shapes.first)
    made = _found(problem, shapes, keys, _Look(1, 0), dict.fromkeys(keys, 0), effort, jobs)
    least = {
        key: one.smallest
        for key, (one, _) in made.items()
        if isinstance(one, Infeasible) and one.resource == "host"
    }
    return [
        replace(need, least=min((least[key] for key in keys if key in least), default=need.kept))
        for keys in shapes.of.values()
        for need in [Need.of(shapes.first[keys[0]])]
    ]


def closer(own: Own, keys: Sequence[Key], effort: Effort, jobs: int) -> Own:
    """The same with these shapes searched in full; nothing gets worse."""
    look = _full(own.shapes)
    try:
        made = _found(own.problem, own.shapes, keys, look, own.rooms, effort, jobs)
    except NoPlanFound:  # there was too little time, and there is a plan
        made = {}
    better: dict[Key, Looked] = {key: (own.of[key], own.bounds.get(key)) for key in own.of}
    for key, (answer, bound) in made.items():
        old, steps = own.of[key], own.shapes.first[key].steps
        if isinstance(answer, Infeasible) or _us(answer, steps) >= _us(old, steps):
            answer = old
        better[key] = answer, bound
    rough = tuple(key for key in own.rough if key not in keys)
    return _own(own.problem, own.shapes, better, own.rooms, own, rough)


def _us(answer: Answer, steps: int) -> int:
    return duration_us(answer.program, steps)


def baselines(problem: Problem) -> list[Answer]:
    """Every task as Hydra trains it on the only kind of devices."""
    own = as_hydra(problem)
    return [own.answers(task)[0] for task in problem.tasks]


def as_hydra(problem: Problem) -> Own:
    """Every shape as Hydra trains it."""
    shapes = Shapes.among(problem)
    made: dict[Key, Looked] = {}
    for key, task in shapes.first.items():
        try:
            made[key] = _baseline(problem, key[0], task), None
        except Infeasible as error:
            made[key] = error, None
    return _own(problem, shapes, made, dict.fromkeys(made, problem.host_bytes))


@dataclass(frozen=True)
class _Look:
    """How closely a shape is looked at: ops simulated at most, divisions of plans for bounds."""

    ops: int
    divisions: int


Looked = tuple[Answer | Infeasible, TaskBound | None]


def _full(shapes: Shapes) -> _Look:
    return _Look(OPS * _FULL // max(_FULL, len(shapes.first)), _WHOLE)


def _found(
    problem: Problem,
    shapes: Shapes,
    keys: Sequence[Key],
    look: _Look,
    rooms: Mapping[Key, int],
    effort: Effort,
    jobs: int,
) -> dict[Key, Looked]:
    bare = replace(problem, kinds=tuple(replace(kind, tasks=()) for kind in problem.kinds))
    items = [(key[0], shapes.first[key], rooms[key]) for key in keys]
    tried = partial(_tried, bare, look)
    return dict(zip(keys, workers.each(tried, items, effort, jobs), strict=True))


def _own(
    problem: Problem,
    shapes: Shapes,
    made: Mapping[Key, Looked],
    rooms: Mapping[Key, int],
    before: Own | None = None,
    rough: tuple[Key, ...] = (),
) -> Own:
    """Everything that fits; Infeasible for the task that needs most of those that fit nowhere, so
    that what it names does for all. before: what was known before, of which programs for other
    kinds are taken again."""
    short: list[Infeasible] = []
    for keys in shapes.of.values():
        looked = [made[key][0] for key in keys if key in made]
        failures = [error for error in looked if isinstance(error, Infeasible)]
        if len(failures) == len(keys):
            short.append(nearest(failures))
    if short:
        raise max(short, key=lambda failure: failure.smallest)
    of = {key: answer for key, (answer, _) in made.items() if isinstance(answer, Answer)}
    bounds = {key: bound for key, (_, bound) in made.items() if bound}
    pairs = {(a, b) for keys in shapes.of.values() for a in keys for b in keys if a != b}
    others: dict[tuple[Key, Key], Program] = {}
    for one, to in sorted(pairs):
        if before and one in of and of[one] is before.of.get(one):
            program = before.others.get((one, to))
        else:
            program = _elsewhere(problem, of[one], to[0], shapes.first[to]) if one in of else None
        if program:
            others[one, to] = program
    left = tuple(key for key in rough if key in of)
    return Own(problem, shapes, of, bounds, others, rooms, left)


def _elsewhere(problem: Problem, answer: Answer, place: int, task: Task) -> Program | None:
    """The program of the answer's choice on another kind, None where it does not fit."""
    kind, name = problem.kinds[place], answer.choice.costs.task.name
    profiled = structs.replace(task, name=name)
    if not any(batch.microbatch == answer.choice.costs.microbatch for batch in task.batches):
        return None
    costs = replace(answer.choice.costs, task=profiled)
    links = Links.of(kind.device)
    if isinstance(answer.choice, HydraChoice):
        theirs = replace(answer.choice, costs=costs)
        return hydra.program(theirs, links) if theirs.device_bytes <= kind.device_bytes else None
    choice = replace(answer.choice, costs=costs)
    room = kind.device_bytes - choice.reserve_bytes
    if room < 0:
        return None
    made = Round(choice, links, room)
    return made.program() if made.slab.bytes <= room else None


def _tried(problem: Problem, look: _Look, item: tuple[int, Task, int], effort: Effort) -> Looked:
    """The best on a kind and the bounds there, or why there is none.

    Where time is short, some of it is left for bounds and for what follows.
    """
    place, task, room = item
    kind = problem.kinds[place]
    own = replace(effort, deadline=effort.deadline - effort.left * _LATER)
    try:
        answer = _best(problem, place, look.ops, task, room, own)
    except Infeasible as error:
        return error, None
    links = Links.of(kind.unshared)
    host = problem.host_bytes
    return answer, task_bound(
        task, links, kind.device_bytes, effort, look.divisions, host_bytes=host
    )


def _best(problem: Problem, place: int, ops: int, task: Task, room: int, effort: Effort) -> Answer:
    """The shorter of what the search finds and of the baseline, which sweeps once per microbatch
    and so needs less memory for boundaries; Infeasible when neither fits."""
    failures: list[Infeasible] = []
    answers: list[Answer] = []
    kind = problem.kinds[place]
    links = Links.of(kind.device)
    search = Search(
        task, links, kind.device_bytes, ops, taken_bytes=kind.taken_bytes, host_bytes=room
    )
    try:
        best = _in_host(search, effort)
        answers.append(Answer(best.choice, best.program, best.candidates, best.complete, place))
    except Infeasible as error:
        failures.append(error)
    try:
        baseline = _baseline(problem, place, task)
        needs = least_bytes(baseline.choice)
        if needs > room:
            raise short_host(task, needs, room)
        answers.append(baseline)
    except Infeasible as error:
        failures.append(error)
    if not answers:
        raise nearest(failures)
    return min(answers, key=lambda answer: duration_us(answer.program, task.steps))


def _in_host(search: Search, effort: Effort) -> Found:
    """The best candidate; where memory on the host may run short, also of those without parameters
    there, which the host makes from masters. Infeasible when neither fits."""
    try:
        best = best_of(search, effort)
    except Infeasible as error:
        if error.resource != "host" or not castable(search.task, search.links):
            raise
        return best_of(replace(search, cast=True), effort)
    costs, cuts = best.choice.costs, list(pairwise(best.choice.cuts))
    roomy = scratch_bytes(costs, cuts, search.host_bytes) is None
    if roomy or not castable(search.task, search.links):
        return best
    try:
        other = best_of(replace(search, cast=True), effort)
    except (Infeasible, NoPlanFound):
        return best
    tried = best.candidates + other.candidates
    best = min(best, other, key=lambda one: duration_us(one.program, search.task.steps))
    return replace(best, candidates=tried)


def _baseline(problem: Problem, place: int, task: Task) -> Answer:
    kind = problem.kinds[place]
    choice = hydra.choose(task, kind.device_bytes, kind.taken_bytes)
    return Answer(choice, hydra.program(choice, Links.of(kind.device)), 1, True, place)
