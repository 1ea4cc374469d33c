"""One strategy for every task: which searches may let all tasks end sooner, and which of the
strategies that were found are taken.

To begin with every strategy is a guess: on one device as long as its bound, on k devices a k-th of
that, with half of what it waits for spared. The strategies that would be taken are searched for,
what is found takes the place of the guesses, and so on until no guess would be taken, or what was
found ends about as soon.

The configuration program says what is taken; where some strategies are for several devices at once,
timetables say whether they are worth it.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

from planner.inputs import Effort, Kind, Problem, Want
from planner.lp import solve, total
from planner.search import Bounds, Candidate, Packed, TaskBound, Wide, descend
from planner.timetable.configuration import (
    Column,
    Demand,
    column,
    configuration,
    demand_of,
    even_us,
    model_of,
)
from planner.timetable.placement import Way, place, works_of
from planner.timetable.sets import sets
from planner.timetable.works import Score, score
from plans.schema import Memory, Op, Program
from profiles.schema import Task

_CHOICE_SECONDS = 10.0  # for the program with one strategy for each task
_GRACE_SECONDS = 2.0  # for a task that has no plan when time is up
_FIRST = 0.25  # of the time, at most, for tasks with lengths on one device
_ABOUT = 128  # times that differ by less than 1/n are about the same

W = TypeVar("W", bound=Way)

Choice = tuple[int, ...]
"""For every task the place of a strategy among its own."""


def columns_of(problem: Problem, task: Task, way: Way, *, free: bool = False) -> list[Column]:
    """All steps of a task by each program of a strategy. free: as if samples of each step could
    still be divided among pipelines in any way."""
    made, packed = list[Column](), way.packed
    for kind, program in zip(problem.kinds, way.programs, strict=True):
        if program and packed and (free or packed.parts):
            us = packed.least_us if free else sum(part.us for part in packed.parts)
            made.append(Column(task.name, kind.name, us, program.devices))
        elif program:
            turns = packed.turns if packed else ()
            made.append(column(program, kind.name, task.steps, turns))
    return made


def least_us(
    problem: Problem, ways: Sequence[Sequence[Way]], effort: Effort, *, free: bool = False
) -> int:
    """A lower bound on any schedule of the tasks by these strategies, even if a task could have
    several of them. free: and if its samples were divided among their pipelines in any way."""
    columns = [
        one
        for task, own in zip(problem.tasks, ways, strict=True)
        for way in own
        for one in columns_of(problem, task, way, free=free)
    ]
    demand = demand_of(problem)
    least = configuration(demand, columns, effort).us
    small = len(problem.tasks) * problem.devices <= effort.limits.gang_pairs
    if small and any(one.devices > 1 for one in columns):
        least = max(least, sets(demand, columns, effort).us)
    return least


def settled(problem: Problem, ways: Sequence[Sequence[W]], effort: Effort) -> list[W]:
    """One strategy for every task, which it keeps on all kinds of devices: those that let all tasks
    end soonest, or where there are too many to say so, those by which the program trains most of
    each task. Where some are for several devices at once, the choice whose timetable is best."""
    if all(len(own) == 1 for own in ways):
        return [own[0] for own in ways]
    choice = _by_program(problem, ways, effort)
    if any(way.program.devices > 1 for own in ways for way in own):
        choice = _by_timetable(problem, ways, choice, effort)
    return _chosen(ways, choice)


def _chosen(ways: Sequence[Sequence[W]], choice: Choice) -> list[W]:
    return [own[at] for own, at in zip(ways, choice, strict=True)]


def _by_program(problem: Problem, ways: Sequence[Sequence[Way]], effort: Effort) -> Choice:
    """As the configuration program has it."""
    columns, of = [], []
    for number, (task, own) in enumerate(zip(problem.tasks, ways, strict=True)):
        for strategy, way in enumerate(own):
            mine = columns_of(problem, task, way)
            columns += mine
            of += [(number, strategy)] * len(mine)
    demand, parts = demand_of(problem), None
    if sum(map(len, ways)) <= effort.limits.chosen_binaries:
        parts = _one_choice_each(demand, columns, of, effort)
    trained = [[0.0] * len(own) for own in ways]
    found = parts or configuration(demand, columns, effort).parts
    for (number, strategy), part in zip(of, found, strict=True):
        trained[number][strategy] += part
    return tuple(each.index(max(each)) for each in trained)


def _one_choice_each(
    demand: Demand, columns: Sequence[Column], of: Sequence[tuple[int, int]], effort: Effort
) -> list[float] | None:
    """The part of every column where each task is trained by columns of one strategy only; None
    where that is not solved in time. of: the task and the strategy of each column."""
    thrift = 1 / effort.limits.chosen_thrift
    model, parts = model_of(demand, columns, dict.fromkeys(c.task for c in columns), thrift)
    takes: dict[int, dict[int, Any]] = {number: {} for number, _ in of}
    for (number, strategy), part in zip(of, parts, strict=True):
        if strategy not in takes[number]:
            name = f"take_{number}_{strategy}"
            takes[number][strategy] = model.add_variable(name, 0, 1, cat="Binary")
        model += total([(1, part), (-1, takes[number][strategy])]) <= 0
    for own in takes.values():
        model += total((1, take) for take in own.values()) == 1
    seconds = min(_CHOICE_SECONDS, max(1.0, effort.left))
    if not solve(model, seconds=seconds, seed=effort.seed, gap=1e-4).found:
        return None
    return [part.value() for part in parts]


def _by_timetable(
    problem: Problem, ways: Sequence[Sequence[Way]], choice: Choice, effort: Effort
) -> Choice:
    """The choice with the best timetable of: this one, those of strategies within some time, and
    those that other strategies for single tasks lead to."""
    demand, objective, limits = demand_of(problem), problem.objective, effort.limits
    tasks = list(zip(problem.tasks, ways, strict=True))
    columns = [[columns_of(problem, task, way) for way in own] for task, own in tasks]
    small = len(ways) * problem.devices <= limits.gang_pairs
    brief = replace(effort, limits=replace(limits, timetable_parts=0))
    scores: dict[Choice, Score] = {}

    def least(one: Choice) -> int:
        chosen = [c for own, at in zip(columns, one, strict=True) for c in own[at]]
        return configuration(demand, chosen, effort).us

    def rated(one: Choice) -> Score:
        if one not in scores:
            works = works_of(problem, _chosen(ways, one))
            pieces = place(works, problem.kind_of, 0, brief, objective)
            scores[one] = score(works, pieces, objective)
        return scores[one]

    def hopeless(one: Choice, now: Score) -> bool:
        return small and objective == "makespan" and not now.late_us and least(one) >= now.value

    def neighbours(now: Choice) -> Iterator[tuple[int, Choice | None]]:
        for number, own in enumerate(ways):
            for other in range(len(own)):
                changed = (*now[:number], other, *now[number + 1 :])
                if changed not in scores and effort.left > 0 and not hopeless(changed, rated(now)):
                    yield len(ways), changed

    about = configuration(demand, [c for own in columns for way in own for c in way], effort).us
    most = max(limits.choice_starts, limits.choice_works // len(ways))
    within = dict.fromkeys(islice(_within(columns, about), most))
    near = sorted(within, key=least)[: limits.choice_starts]
    return descend(min([choice, *near], key=rated), neighbours, rated, limits.choice_works)


def _within(columns: Sequence[Sequence[Sequence[Column]]], about: int) -> Iterator[Choice]:
    """For any time that some task may take, those next to `about` first: of the strategies that
    take no longer, those that take about the least time of all their devices together, and the
    narrowest of these; the shortest where all take longer.

    columns: by task and strategy.
    """
    thrifty = [min(one.us * one.devices for way in own for one in way) for own in columns]
    times = {one.us for own in columns for way in own for one in way}
    for limit in sorted(times, key=lambda us: (abs(us - about), us)):
        choice = []
        for own, least in zip(columns, thrifty, strict=True):
            keys = [
                min(
                    (
                        max(0, one.us - limit),
                        one.us * one.devices * _ABOUT // max(1, least),
                        one.devices,
                    )
                    for one in way
                )
                for way in own
            ]
            choice.append(keys.index(min(keys)))
        yield tuple(choice)


@dataclass(frozen=True)
class Guess:
    """A strategy that is not searched for yet: about how long its programs take."""

    of: Wide
    programs: tuple[Program | None, ...]
    evaluates: tuple[Program | None, ...] = ()
    packed: Packed | None = None

    @property
    def program(self) -> Program:
        """The one for the first kind of devices."""
        return next(program for program in self.programs if program)


class Searches(Protocol):
    """Searches of which each is run once."""

    @property
    def ways(self) -> Sequence[Sequence[Candidate]]:
        """All that was found for every task."""
        ...

    def known(self, wide: Wide) -> bool:
        """True if this search was run."""
        ...

    def run(self, alone: Collection[str], wide: Sequence[Wide], effort: Effort) -> None:
        """Search for these tasks on one device, and on several."""
        ...


def explore(problem: Problem, searches: Searches, alone: Sequence[Bounds], effort: Effort) -> None:
    """Run the searches that matter. alone: the bounds of every task on one device of each kind.

    Where other ends count than the last one, and where tasks go on as they have begun, those are
    all that are wanted. Tasks with lengths are looked for on one device first, and where that has
    no memory for their longest samples on any number of them.
    """
    names = [task.name for task in problem.tasks]
    if packed := [task.name for task in problem.tasks if task.lengths]:
        first = replace(effort, deadline=effort.deadline - effort.left * (1 - _FIRST))
        searches.run(packed, (), first)
        alone = [*_told(problem, searches, alone)]
    wide = wanted(problem, alone, effort)
    if not wide or _many_ends(problem) or problem.kept:
        searches.run(names, wide, effort)
        searches.run((), _deeper(problem, searches), effort)
        return
    every = [*(Wide(name, 0, 1) for name in names), *wide]
    guesses = list(_guesses(problem, alone, every))
    while True:
        guesses = [guess for guess in guesses if not searches.known(guess.of)]
        guessed = {guess.of.task for guess in guesses}
        deeper = [one for one in _deeper(problem, searches) if one.task not in guessed]
        guesses += _guesses(problem, alone, deeper)
        found = searches.ways
        ways: list[list[Candidate | Guess]] = [
            [*own, *(guess for guess in guesses if guess.of.task == name)]
            for name, own in zip(names, found, strict=True)
        ]
        if not all(ways):
            return  # a task that cannot be trained
        if effort.left <= 0:
            # Late is better than nothing for tasks that were looked for on several devices only.
            missing = [name for name, own in zip(names, found, strict=True) if not own]
            grace = time.monotonic() + _GRACE_SECONDS * len(missing)
            searches.run(missing, (), replace(effort, deadline=grace))
            return
        chosen = settled(problem, ways, effort)
        asked = [one.of for one in chosen if isinstance(one, Guess)]
        if not asked or (all(found) and _near(problem, found, chosen, effort)):
            return
        wide = [one for one in asked if one.devices > 1]
        searches.run([one.task for one in asked if one.devices == 1], wide, effort)


def _told(
    problem: Problem, searches: Searches, alone: Sequence[Bounds]
) -> Iterator[Mapping[tuple[int, int], TaskBound]]:
    """The bounds of every task on one device; of tasks with lengths, whose bounds do not know of
    memory, times that were found, or as if half of it was spent on waiting for some."""
    for task, own, bounds in zip(problem.tasks, searches.ways, alone, strict=True):
        if not task.lengths:
            yield bounds
            continue
        us = bounds[0, 1].compute_us
        times = [one.us // task.steps for way in own for one in columns_of(problem, task, way)]
        took = max(us, min(times, default=2 * us))
        yield {(0, 1): TaskBound(us, 0, took, took, took)}


def _deeper(problem: Problem, searches: Searches) -> list[Wide]:
    """Searches of tasks with lengths that were found on no devices: on all other numbers of them,
    in whose pipelines longer samples fit."""
    tasks = zip(problem.tasks, searches.ways, strict=True)
    names = [task.name for task, own in tasks if task.lengths and not own]
    kinds = list(enumerate(problem.kinds))
    asked = (Wide(name, at, k) for name in names for at, kind in kinds for k in _widths(kind))
    return [wide for wide in asked if not searches.known(wide)]


def _near(
    problem: Problem,
    found: Sequence[Sequence[Candidate]],
    chosen: Sequence[Candidate | Guess],
    effort: Effort,
) -> bool:
    """True if what was found ends about as soon as what is chosen, or time is up."""
    now = least_us(problem, [[one] for one in settled(problem, found, effort)], effort)
    then = least_us(problem, [[one] for one in chosen], effort)
    return effort.left <= 0 or (now - then) * effort.limits.wide_near <= now


def _guesses(problem: Problem, alone: Sequence[Bounds], wide: Sequence[Wide]) -> Iterator[Guess]:
    """A guess for each of these searches; of one device, on all kinds."""
    kinds = range(len(problem.kinds))
    of = {task.name: bounds for task, bounds in zip(problem.tasks, alone, strict=True)}
    for one in wide:
        bounds = of[one.task]
        if one.devices == 1:
            programs = tuple(_outline(one.task, bounds[at, 1].period_us, 1) for at in kinds)
            yield Guess(one, programs)
            continue
        bound = bounds[one.kind, 1]
        us = (bound.compute_us + bound.period_us) // (2 * one.devices)
        made = _outline(one.task, us, one.devices)
        yield Guess(one, tuple(made if at == one.kind else None for at in kinds))


def _outline(task: str, us: int, devices: int) -> Program:
    """A program of which only the period is known."""
    op, memory = Op(f"{task}.s0.B0", "0.compute", 0, us), (Memory(0, 0),) * devices
    return Program(task, memory, (task,), 0, us, us, 0, (), (), (op,), ())


def _many_ends(problem: Problem) -> bool:
    """True if other ends count than the last one."""
    dues = (want.deadline_us for want in problem.wants.values())
    return problem.objective != "makespan" or any(due is not None for due in dues)


def wanted(problem: Problem, alone: Sequence[Bounds], effort: Effort) -> list[Wide]:
    """The tasks that may let all end sooner on several devices at once, and on how many.

    If k devices trained a task k times as fast, the whole could end with the even share: tasks that
    take longer alone are wanted on so many that they do not, and on a few less and more; so are
    those that wait for copies much of the time, which more memory may spare. Where other ends count
    than the last one, tasks are wanted on any number, and so are those that go on on several.
    """
    limits, demand = effort.limits, demand_of(problem)
    times, spared = list[dict[int, int]](), list[dict[int, int]]()
    for task, bounds in zip(problem.tasks, alone, strict=True):
        own = {at: bounds[at, 1] for at in range(len(problem.kinds))}
        waits = {
            at
            for at, one in own.items()
            if (one.period_us - one.compute_us) * limits.wide_waits > one.period_us
        }
        times.append({at: task.steps * one.period_us for at, one in own.items()})
        spared.append(
            {
                at: task.steps * (one.compute_us if at in waits else one.period_us)
                for at, one in own.items()
            }
        )
    soon = even_us(demand, _alone(problem, spared))
    end = configuration(demand, _alone(problem, times), effort).us
    late = problem.objective == "makespan" and (end - soon) * limits.wide_gain > end
    found = []
    for task, mine, least in zip(problem.tasks, times, spared, strict=True):
        due = problem.wants.get(task.name, Want()).deadline_us is not None
        due |= task.name in problem.additions
        long = (min(mine.values()) - soon) * limits.wide_near > -soon
        for at, us in mine.items():
            widths = _widths(problem.kinds[at])
            if late and (long or least[at] < us):
                enough = next((n for n, k in enumerate(widths) if us <= k * soon), len(widths))
                widths = widths[max(0, enough - 2) : enough + 2]
            elif not due and problem.objective == "makespan":
                widths = []
            found += [Wide(task.name, at, devices) for devices in widths]
    return found


def _alone(problem: Problem, times: Sequence[Mapping[int, int]]) -> list[Column]:
    """All steps of every task on one device, in so many µs on each kind."""
    return [
        Column(task.name, problem.kinds[at].name, us)
        for task, own in zip(problem.tasks, times, strict=True)
        for at, us in own.items()
    ]


def _widths(kind: Kind) -> list[int]:
    """Numbers of devices, of all those of a kind, that a task is wanted on."""
    powers = [1 << power for power in range(kind.count.bit_length())]
    nodes = [kind.node * power for power in powers] if kind.node else []
    return sorted({k for k in (3, kind.count, *powers, *nodes) if k > 1 and kind.holds(k)})
