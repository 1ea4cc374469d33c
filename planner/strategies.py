"""Strategies: ways to train tasks that a plan may use, as columns of the configuration program.

A strategy is a function of what is known and of the program's prices, which are None when it is
asked for the first time. It yields offers: a gang, and what a plan has that uses it. Columns are
asked for again and again, until no strategy has one that would end the plan sooner; so a strategy
may look for its columns only once prices say that they pay.

`alone` has every task by itself, on one device; `sharing` two tasks on one device. Another one, of
tasks on several devices say, is one more function in `STRATEGIES`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement

import numpy as np

from planner import pairs
from planner.answers import Key, Own
from planner.configuration import Prices
from planner.gangs import Gang, gang
from planner.pairs import Couple, Part, Shared, Together, Tries
from planner.problem import Effort
from planner.worth import own_gangs
from plans.metrics import duration_us
from profiles.schema import Task

_WORTH = 1_000  # less than 1/n of the end is not worth building a program
_ROOM = 20  # parts of two rounds, of which streams of both must leave one idle
_EACH = 4  # couples of shapes that are built at a time
_LEAST = 1e-6  # of the end, that a column must gain


@dataclass(frozen=True)
class Known:
    """What strategies go by: every task's own programs; and what was tried so far."""

    own: Own
    effort: Effort
    jobs: int = 1
    tries: Tries = field(default_factory=Tries)


@dataclass(frozen=True)
class Offer:
    """A gang, and what it takes to put it in a plan.

    choices: of its tasks in turn, the choice by which it trains them. In a plan a task has one, so
    gangs that train it by different ones exclude each other. use: what a plan has that runs so many
    rounds of the gang; None for tasks' own programs.
    """

    gang: Gang
    choices: tuple[Hashable, ...]
    use: Callable[[int], Together] | None = None

    @property
    def key(self) -> object:
        """Equal for equal offers."""
        return self.gang, self.choices


Strategy = Callable[[Known, Prices | None], Iterable[Offer]]


def alone(known: Known, prices: Prices | None) -> Iterator[Offer]:
    """Every task by itself on one device, by its own programs."""
    if prices is None:
        for key, own in own_gangs(known.own):
            yield Offer(own, (key,))


def sharing(known: Known, prices: Prices | None) -> Iterator[Offer]:
    """Two tasks on one device. Of what would pay if streams were as busy as they could be, the
    couples of shapes that promise most are built; and of what is built, each task's best."""
    if prices is None:
        return
    tasks = _by_shape(known.own)
    end = sum(prices.steps.values())  # what is to be done is worth the time until then
    hopes = {
        couple: hope
        for couple in _couples(tasks)
        if not known.tries.knows(couple)
        and (hope := _hope(known.own, tasks, couple, prices)) * _WORTH > end
    }
    if hopes and known.effort.left > 0:
        most = sorted(hopes, key=lambda couple: (-hopes[couple], couple))[:_EACH]
        pairs.build(known.tries, known.own, most, known.effort, known.jobs)
    for couple in _couples(tasks):
        for share, made in known.tries.of(couple).items():
            yield from _columns(known, tasks, couple, share, made, prices)


STRATEGIES: tuple[Strategy, ...] = (alone, sharing)


def _by_shape(own: Own) -> dict[Key, list[Task]]:
    """Tasks by their shapes, those with long rounds first, as profiled on the kind of the shape."""
    keys = sorted(own.of, key=lambda key: (-own.of[key].program.period_us, key))
    of: dict[Key, list[Task]] = {key: [] for key in keys}
    for place, kind in enumerate(own.problem.kinds):
        for task in kind.tasks:
            key = own.shapes.of[task.name][place]
            if key in of:
                of[key].append(task)
    return of


def _couples(tasks: dict[Key, list[Task]]) -> Iterator[Couple]:
    """Two shapes on one kind of device, of different tasks."""
    for one, other in combinations_with_replacement(tasks, 2):
        if one[0] == other[0] and (one != other or len(tasks[one]) > 1):
            yield one, other


def _hope(own: Own, tasks: dict[Key, list[Task]], couple: Couple, prices: Prices) -> float:
    """What all tasks of these shapes together would gain at best."""
    one, other = (own.of[key].program for key in couple)
    period = pairs.optimistic_us(one, other)
    if period * _ROOM >= (one.period_us + other.period_us) * (_ROOM - 1):
        return 0.0
    kind = own.problem.kinds[couple[0][0]].name
    return sum(gain for gain, *_ in _best(tasks, couple, kind, (0, period), prices))


def _columns(
    known: Known,
    tasks: dict[Key, list[Task]],
    couple: Couple,
    share: int,
    made: Shared,
    prices: Prices,
) -> Iterator[Offer]:
    """For every task of the first shape the best one of the other, and each of both by itself."""
    own, tries = known.own, known.tries
    kind = own.problem.kinds[couple[0][0]].name
    period = made.program.period_us
    run = duration_us(made.program, 1) - period, period
    parts = (couple[0], share), (couple[1], 4 - share)
    for gain, one, other in _best(tasks, couple, kind, run, prices):
        if gain <= sum(prices.steps.values()) * _LEAST:
            continue
        both = one, other
        steps = {task.name: task.steps for task in both}
        use = partial(pairs.together, tries, own, couple, share, both)
        yield Offer(gang(made.program, kind, steps, tuple(steps)), parts, use)
        for part, task in zip(parts, both, strict=True):
            made_alone = gang(pairs.rest(tries, own, part), kind, steps, (task.name,))
            yield Offer(made_alone, (part,), partial(_apart, known, part, task))


def _apart(known: Known, part: Part, task: Task, rounds: int) -> Together:
    return pairs.apart(known.tries, known.own, part, task)


def _best(
    tasks: dict[Key, list[Task]],
    couple: Couple,
    kind: str,
    run: tuple[int, int],
    prices: Prices,
) -> Iterator[tuple[float, Task, Task]]:
    """For every task of the first shape the one of the other with which it gains most, if
    anything, when n of their rounds take run[0] + n * run[1] µs."""
    one, other = (tasks[key] for key in couple)
    steps, worth, cost = zip(_prices(one, prices), _prices(other, prices), strict=True)
    rounds = np.minimum(steps[0][:, None], steps[1][None, :])
    gains = rounds * (worth[0][:, None] + worth[1][None, :])
    us = run[0] + rounds * run[1]
    gains -= us * (prices.device[kind] + cost[0][:, None] + cost[1][None, :])
    if couple[0] == couple[1]:
        gains[np.tril_indices(len(one))] = 0.0
    for at, there in enumerate(gains.argmax(axis=1)):
        if gains[at, there] > 0:
            yield float(gains[at, there]), one[at], other[there]


def _prices(
    tasks: Sequence[Task], prices: Prices
) -> tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", ...]:
    """Steps of the tasks, what each step is worth, and what a µs of their time costs."""
    steps = np.array([task.steps for task in tasks], dtype=np.float64)
    worth = np.array([prices.steps[task.name] for task in tasks]) / steps
    return steps, worth, np.array([prices.task[task.name] for task in tasks])
