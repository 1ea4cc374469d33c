"""How soon all tasks can be done by any schedule of given programs: the configuration program.

    minimise T                                       over x_g >= 0, how much gang g runs
    every task        sum of its gangs' rounds   >=  its steps
    every kind        sum of device time         <=  devices * T
    every task        sum of its gangs' time     <=  T - its earliest start

Its optimum is the best that segments could reach if they could be cut anywhere. With gangs of one
device it is the longest task or the even share, whichever is more. The bound does not trust the
solver: what it says a device's time, a task's time and a task's steps are worth is repaired in
whole numbers until no gang yields more than it costs, and then no schedule can be shorter than
the steps are worth.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from planner.gangs import Gang
from planner.problem import Effort
from planner.solver import duals, minimise, solve, total

_log = logging.getLogger(__name__)
_PRICE = 10**12  # prices are whole multiples of 1 / _PRICE
_LEAST_SECONDS = 5.0  # for the program, which takes a moment, also when time is up


@dataclass(frozen=True)
class Demand:
    """What is asked for: steps of every task, devices of every kind, earliest starts in µs."""

    steps: Mapping[str, int]
    devices: Mapping[str, int]
    start_us: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Configuration:
    """us: no schedule of the gangs ends sooner. gang_us: how long each of them runs in a schedule
    that ends about then, if segments cost nothing to enter, leave and move."""

    us: int
    gang_us: tuple[int, ...]


@dataclass(frozen=True)
class _Prices:
    """Of a device's time by kind, of a task's time, and of all steps of a task."""

    device: dict[str, int]
    task: dict[str, int]
    steps: dict[str, int]


def configuration(demand: Demand, gangs: Sequence[Gang], effort: Effort) -> Configuration:
    """The proven bound and the time of every gang; a bound of 0 when the solver has no answer.

    ValueError when a task is in no gang.
    """
    missing = demand.steps.keys() - {task for gang in gangs for task in gang.tasks}
    if missing:
        raise ValueError(f"no gang trains {', '.join(sorted(missing))}")
    model = minimise("configuration")
    unit = max(gang.us for gang in gangs) or 1  # the solver sees times of at most 1
    end = model.add_variable("end", 0)
    runs = [model.add_variable(f"run_{index}", 0) for index in range(len(gangs))]
    model += end
    of: dict[str, list[int]] = {task: [] for task in demand.steps}
    for index, gang in enumerate(gangs):
        for task in gang.tasks:
            of[task].append(index)
    for kind, count in demand.devices.items():
        used = [
            (gang.devices * gang.us / unit, run)
            for gang, run in zip(gangs, runs, strict=True)
            if gang.kind == kind
        ]
        model += total([*used, (-count, end)]) <= 0, f"device_{kind}"
    for number, (task, own) in enumerate(of.items()):
        rounds = [(gangs[at].rounds / demand.steps[task], runs[at]) for at in own]
        model += total(rounds) >= 1, f"steps_{number}"
        busy = [(gangs[at].us / unit, runs[at]) for at in own]
        late = demand.start_us.get(task, 0) / unit
        model += total([*busy, (-1, end)]) <= -late, f"task_{number}"
    seconds = max(_LEAST_SECONDS, effort.left)
    if not solve(model, seconds=seconds, seed=effort.seed).found:
        return Configuration(0, (0,) * len(gangs))
    found = duals(model)
    prices = _Prices(
        {kind: _whole(-found[f"device_{kind}"]) for kind in demand.devices},
        {task: _whole(-found[f"task_{number}"]) for number, task in enumerate(of)},
        {task: _whole(found[f"steps_{number}"]) for number, task in enumerate(of)},
    )
    _log.debug("prices of device time %s, of task time %s", prices.device, prices.task)
    times = tuple(round(gang.us * run.value()) for gang, run in zip(gangs, runs, strict=True))
    return Configuration(_proven(demand, gangs, of, prices), times)


def _whole(price: float) -> int:
    return max(0, round(price * _PRICE))


def _proven(
    demand: Demand, gangs: Sequence[Gang], of: Mapping[str, Sequence[int]], prices: _Prices
) -> int:
    """What all steps and starts are worth, in µs of the end: weak duality, in exact numbers."""
    worth_of_end = sum(prices.device[kind] * n for kind, n in demand.devices.items())
    worth_of_end += sum(prices.task.values())
    if not worth_of_end:
        return 0
    steps = {task: max(1, price) for task, price in prices.steps.items()}
    # By how much the prices of a gang's steps must change for a run to be worth what it costs.
    rates = []
    for gang in gangs:
        cost = gang.devices * prices.device[gang.kind] + sum(prices.task[t] for t in gang.tasks)
        gain = sum(Fraction(steps[t] * gang.rounds, demand.steps[t]) for t in gang.tasks)
        rates.append(gang.us * cost / gain)
    worth = sum(int(steps[task] * min(rates[at] for at in own)) for task, own in of.items())
    worth += sum(prices.task[task] * us for task, us in demand.start_us.items())
    return -(-worth // worth_of_end)
