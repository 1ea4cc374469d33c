"""The configuration program over the columns of all strategies, and what a plan takes of it.

Columns are generated: the program says what a device's time and a task's steps are worth, and
strategies add what gains at these prices, until nothing does. A plan has one choice for each task;
with that rule the program is asked once more, and says how many rounds of each gang the plan runs.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.configuration import Configuration, Demand, configuration, program
from planner.problem import Effort
from planner.solver import solve, total
from planner.strategies import Known, Offer, Strategy
from planner.worth import demand_of

_TURNS = 16  # of adding columns
_EXACT = 400  # choices up to which the program decides about them
_SECONDS = 10.0  # for that
_ALONE = 0.25  # what steps of a task alone count, since any choice does for them
_THRIFT = 1e-3  # so that the program uses no device for nothing

Choices = Mapping[str, Hashable]  # of every task


@dataclass(frozen=True)
class Columns:
    """All offers, and the program's answer over their gangs."""

    offers: tuple[Offer, ...]
    found: Configuration


def columns(known: Known, strategies: Sequence[Strategy], thrift: float = 0.0) -> Columns:
    """Everything that pays, as far as time allows.

    thrift: what the mean time that devices are used counts beside the end; with none, devices'
    time is worth nothing where a task alone takes as long as all do.
    """
    demand = demand_of(known.own.problem)
    asked = [offer for strategy in strategies for offer in strategy(known, None)]
    offers = {offer.key: offer for offer in asked}
    found = _solved(demand, offers.values(), known.effort, thrift)
    for _ in range(_TURNS):
        if not found.prices or known.effort.left <= 0:
            break
        priced = [offer for strategy in strategies for offer in strategy(known, found.prices)]
        new = {offer.key: offer for offer in priced if offer.key not in offers}
        if not new:
            break
        offers |= new
        found = _solved(demand, offers.values(), known.effort, thrift)
    return Columns(tuple(offers.values()), found)


def _solved(
    demand: Demand, offers: Iterable[Offer], effort: Effort, thrift: float
) -> Configuration:
    return configuration(demand, [offer.gang for offer in offers], effort, thrift)


def settled(made: Columns, demand: Demand, effort: Effort, thrift: float = 0.0) -> Choices:
    """One choice for every task, so that what is left of the columns ends soonest.

    Where there are too many, each task's is the one by which the program trains most of it.
    """
    ways = _ways(made)
    several = {task: choices for task, choices in ways.items() if len(choices) > 1}
    if sum(map(len, several.values())) <= _EXACT and several:
        exact = _exact(made, demand, several, effort, max(thrift, _THRIFT))
        if exact:
            return {task: exact.get(task, _most(choices)) for task, choices in ways.items()}
    return {task: _most(choices) for task, choices in ways.items()}


Ways = Mapping[str, Mapping[Hashable, float]]  # how much of a task by each choice


def _ways(made: Columns) -> dict[str, dict[Hashable, float]]:
    ways: dict[str, dict[Hashable, float]] = {}
    for offer, us in zip(made.offers, made.found.gang_us, strict=True):
        for task, choice in zip(offer.gang.tasks, offer.choices, strict=True):
            of = ways.setdefault(task, {})
            part = us * offer.gang.rounds / max(1, offer.gang.us)
            of[choice] = of.get(choice, 0.0) + part * (len(offer.gang.tasks) > 1 or _ALONE)
    return ways


def _most(choices: Mapping[Hashable, float]) -> Hashable:
    return max(choices, key=lambda choice: choices[choice])


def _exact(
    made: Columns, demand: Demand, several: Ways, effort: Effort, thrift: float
) -> dict[str, Hashable]:
    """The program with one choice for each task; nothing where it is not solved in time."""
    gangs = [offer.gang for offer in made.offers]
    unit = max(gang.us for gang in gangs) or 1
    devices = max(1, sum(demand.devices.values()))
    model, runs = program(demand, gangs, unit, thrift / devices)
    takes = {
        (task, choice): model.add_variable(f"take_{number}_{at}", 0, 1, cat="Binary")
        for number, (task, choices) in enumerate(several.items())
        for at, choice in enumerate(choices)
    }
    for task, choices in several.items():
        model += total((1, takes[task, choice]) for choice in choices) == 1
    for offer, run in zip(made.offers, runs, strict=True):
        for task, choice in zip(offer.gang.tasks, offer.choices, strict=True):
            if task in several:
                most = demand.steps[task] / offer.gang.rounds
                model += total([(1, run), (-most, takes[task, choice])]) <= 0
    seconds = min(_SECONDS, max(1.0, effort.left))
    if not solve(model, seconds=seconds, seed=effort.seed, gap=1e-4).found:
        return {}
    return {task: choice for (task, choice), take in takes.items() if take.value() > 0.5}


def taken(
    made: Columns, choices: Choices, demand: Demand, effort: Effort, thrift: float = 0.0
) -> list[tuple[Offer, int]]:
    """Gangs of several tasks, and how many rounds of each a plan runs that trains every task by its
    choice. What tasks have left to do they do alone."""
    able = [offer for offer in made.offers if _trains(offer, choices)]
    found = _solved(demand, able, effort, max(thrift, _THRIFT))
    rounds = [
        (offer, offer.gang.rounds * us // max(1, offer.gang.us))
        for offer, us in zip(able, found.gang_us, strict=True)
        if len(offer.gang.tasks) > 1
    ]
    return list(_within(rounds, dict(demand.steps)))


def _within(
    rounds: Sequence[tuple[Offer, int]], left: dict[str, int]
) -> Iterator[tuple[Offer, int]]:
    """No more rounds than the tasks have steps: the program's numbers are not exact."""
    for offer, count in rounds:
        fits = min(count, *(left[task] for task in offer.gang.tasks))
        if fits > 0:
            yield offer, fits
            for task in offer.gang.tasks:
                left[task] -= fits


def _trains(offer: Offer, choices: Choices) -> bool:
    pairs = zip(offer.gang.tasks, offer.choices, strict=True)
    return all(choices[task] == choice for task, choice in pairs)
