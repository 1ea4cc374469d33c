"""Which searches are worth running: for each task on one device, or on how many at once.

A search on several devices is long, and most tasks gain nothing by it. So a guess stands for every
search that was not run: on one device a strategy as long as its bound, on k devices a k-th of that,
with half of what it waits for spared. The searches whose guesses would be taken are run, what they
find takes the place of the guesses, and so on until no guess would be taken, or what was found ends
about as soon.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.bounds import Bounds, Column, TaskBound, configuration, demand_of, even_us
from planner.inputs import DeviceGroup, Effort, Problem, Want
from planner.search import Candidate, Packed, Searches, Wide, teams_of
from planner.timetable import choose_programs, columns_of, schedule_bound_us
from plans.schema import Memory, Op, Program

_GRACE_SECONDS = 2.0  # for a task that has no plan when time is up
_FIRST = 0.25  # of the time, at most, for tasks with lengths on one device


@dataclass(frozen=True)
class Guess:
    """A stand-in for a search that was not run: programs as long as those it may find."""

    of: Wide
    programs: tuple[Program | None, ...]
    evaluates: tuple[Program | None, ...] = ()
    packed: Packed | None = None

    @property
    def program(self) -> Program:
        """The one for the first kind of devices."""
        return next(program for program in self.programs if program)


def explore(problem: Problem, searches: Searches, alone: Sequence[Bounds], effort: Effort) -> None:
    """Run the searches that matter. alone: the bounds of every task on one device of each kind.

    Guesses only say when the last task could end. So where other ends count as well, all searches
    that are `candidate_widths` are run. Tasks with
    lengths are searched for on one device first, and on every number of devices where one has no
    memory for their longest samples. A single task for several devices is not: to lay out all of
    its steps on one may take all the time there is.
    """
    names = [task.name for task in problem.tasks]
    if packed := [task.name for task in problem.tasks if task.lengths]:
        if len(names) > 1 or problem.devices == 1:
            first = replace(effort, deadline=effort.deadline - effort.left * (1 - _FIRST))
            searches.run(packed, (), first)
        alone = [*_told(problem, searches, alone)]
    wide = candidate_widths(problem, alone, effort)
    if wide and not _many_ends(problem):
        _by_guesses(problem, searches, alone, wide, effort)
        return
    searches.run(names, wide, effort)
    searches.run((), _deeper(problem, searches), effort)


def _by_guesses(
    problem: Problem,
    searches: Searches,
    alone: Sequence[Bounds],
    wide: Sequence[Wide],
    effort: Effort,
) -> None:
    """Run those of the searches on one device, and of the `wide` ones, whose guesses would be
    taken, until what was found ends about as soon."""
    names = [task.name for task in problem.tasks]
    one = [Wide(name, 0, 1) for name in names if not problem.additions.get(name)]
    guesses = list(_guesses(problem, alone, [*one, *wide]))
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
        chosen = choose_programs(problem, ways, effort)
        asked = [one.of for one in chosen if isinstance(one, Guess)]
        several = [one for one in asked if one.devices > 1]
        # What takes several devices takes long to search, and is left if little is gained by it.
        if not asked or (several and all(found) and _near(problem, found, chosen, effort)):
            return
        searches.run([one.task for one in asked if one.devices == 1], several, effort)


def _told(problem: Problem, searches: Searches, alone: Sequence[Bounds]) -> Iterator[Bounds]:
    """The bounds of every task on one device. Those of tasks with lengths do not know of memory, so
    these take as long as what was found, or twice as long as they compute where nothing was; those
    that were not searched for, as long as they compute."""
    for task, own, bounds in zip(problem.tasks, searches.ways, alone, strict=True):
        if not task.lengths:
            yield bounds
            continue
        us = bounds[0, 1].us("compute")
        times = [one.us // task.steps for way in own for one in columns_of(problem, task, way)]
        waits = 2 if searches.known(Wide(task.name, 0, 1)) else 1
        took = max(us, min(times, default=waits * us))
        yield {(0, 1): TaskBound({"compute": us, "longest": took})}


def _deeper(problem: Problem, searches: Searches) -> list[Wide]:
    """Searches on several devices, in whose pipelines longer samples fit: on every number of them,
    for the tasks with lengths of which nothing is found yet."""
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
    now = schedule_bound_us(
        problem, [[one] for one in choose_programs(problem, found, effort)], effort
    )
    then = schedule_bound_us(problem, [[one] for one in chosen], effort)
    return effort.left <= 0 or (now - then) * effort.limits.wide_near <= now


def _guesses(problem: Problem, alone: Sequence[Bounds], wide: Sequence[Wide]) -> Iterator[Guess]:
    """A guess for each of these searches; one on one device is for all kinds at once."""
    kinds = range(len(problem.kinds))
    of = {task.name: bounds for task, bounds in zip(problem.tasks, alone, strict=True)}
    for one in wide:
        bounds = of[one.task]
        if one.devices == 1:
            programs = tuple(_outline(one.task, bounds[at, 1].period_us, 1) for at in kinds)
            yield Guess(one, programs)
            continue
        bound = bounds[one.kind, 1]
        us = (bound.us("compute") + bound.period_us) // (2 * one.devices)
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


def candidate_widths(problem: Problem, alone: Sequence[Bounds], effort: Effort) -> list[Wide]:
    """The searches on several devices at once by which all tasks may end sooner.

    If k devices trained a task k times as fast, the whole could end with the even share. Tasks that
    take longer than that on one device are wanted on so many that they do not, and on a few fewer
    and more. So are those that wait for copies much of the time, which more memory may spare, and
    where there are no more tasks than devices those of more than half the even share: what they
    leave free on a device no other task fills. Where other ends count than the last one, and for
    tasks that several devices trained before, every number of devices is wanted.
    """
    limits, demand = effort.limits, demand_of(problem)
    times, spared = list[dict[int, int]](), list[dict[int, int]]()
    for task, bounds in zip(problem.tasks, alone, strict=True):
        own = {at: bounds[at, 1] for at in range(len(problem.kinds))}
        waits = {
            at
            for at, one in own.items()
            if (one.period_us - one.us("compute")) * limits.wide_waits > one.period_us
        }
        times.append({at: task.steps * one.period_us for at, one in own.items()})
        spared.append(
            {
                at: task.steps * (one.us("compute") if at in waits else one.period_us)
                for at, one in own.items()
            }
        )
    soon = even_us(demand, _alone(problem, spared))
    end = configuration(demand, _alone(problem, times), effort).us
    late = problem.objective == "makespan" and (end - soon) * limits.wide_gain > end
    few = len(problem.tasks) <= problem.devices
    found = []
    for task, mine, least in zip(problem.tasks, times, spared, strict=True):
        due = problem.wants.get(task.name, Want()).deadline_us is not None
        long = (min(mine.values()) - soon) * limits.wide_near > -soon
        for at, us in mine.items():
            widths = _widths(problem.kinds[at])
            if sums := problem.additions.get(task.name):  # on as many as its replicas go into
                team = max(teams_of(task, sums))
                widths = sorted({*widths, problem.kinds[at].count // team * team} - {0, 1})
            elif late and (long or least[at] < us or (few and 2 * us > soon)):
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


def _widths(kind: DeviceGroup) -> list[int]:
    """Numbers of devices, of all those of a kind, that a task is wanted on."""
    powers = [1 << power for power in range(kind.count.bit_length())]
    nodes = [kind.node * power for power in powers] if kind.node else []
    return sorted({k for k in (3, kind.count, *powers, *nodes) if k > 1 and kind.holds(k)})
