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
from typing import Any

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
class Prices:
    """By how much the end moves, in µs: with a µs of a device's time, by kind; with a µs of a
    task's own time; with all steps of a task."""

    device: Mapping[str, float]
    task: Mapping[str, float]
    steps: Mapping[str, float]

    def cost(self, gang: Gang) -> float:
        """Of all rounds of a gang."""
        each = gang.devices * self.device[gang.kind] + sum(self.task[t] for t in gang.tasks)
        return gang.us * each

    def gain(self, gang: Gang, steps: Mapping[str, int]) -> float:
        """By how many µs the end would come sooner for every time that all rounds of the gang
        run, at first; none for gangs that are in the program."""
        worth = sum(self.steps[t] * gang.rounds / steps[t] for t in gang.tasks)
        return worth - self.cost(gang)


@dataclass(frozen=True)
class Configuration:
    """us: no schedule of the gangs ends sooner. gang_us: how long each of them runs in a schedule
    that ends about then, if segments cost nothing to enter, leave and move. prices: of that
    schedule, None when the solver has no answer."""

    us: int
    gang_us: tuple[int, ...]
    prices: Prices | None = None


def configuration(
    demand: Demand, gangs: Sequence[Gang], effort: Effort, thrift: float = 0.0
) -> Configuration:
    """The proven bound and the time of every gang; a bound of 0 when the solver has no answer.

    thrift: what the mean time that devices are used counts, beside the end; the bound, still
    proven, is then lower. ValueError when a task is in no gang.
    """
    missing = demand.steps.keys() - {task for gang in gangs for task in gang.tasks}
    if missing:
        raise ValueError(f"no gang trains {', '.join(sorted(missing))}")
    of = _of(demand, gangs)
    thrift /= max(1, sum(demand.devices.values()))
    unit = max(gang.us for gang in gangs) or 1  # the solver sees times of at most 1
    model, runs = program(demand, gangs, unit, thrift)
    seconds = max(_LEAST_SECONDS, effort.left)
    if not solve(model, seconds=seconds, seed=effort.seed).found:
        return Configuration(0, (0,) * len(gangs))
    found = duals(model)
    prices = Prices(
        {kind: max(0.0, thrift - found[f"device_{kind}"]) for kind in demand.devices},
        {task: max(0.0, -found[f"task_{number}"]) for number, task in enumerate(of)},
        {task: max(0.0, found[f"steps_{number}"]) * unit for number, task in enumerate(of)},
    )
    _log.debug("prices of device time %s, of task time %s", prices.device, prices.task)
    times = tuple(round(gang.us * run.value()) for gang, run in zip(gangs, runs, strict=True))
    return Configuration(_proven(demand, gangs, of, prices, unit), times, prices)


def _of(demand: Demand, gangs: Sequence[Gang]) -> dict[str, list[int]]:
    """The places of every task's gangs."""
    of: dict[str, list[int]] = {task: [] for task in demand.steps}
    for index, gang in enumerate(gangs):
        for task in gang.tasks:
            of[task].append(index)
    return of


def program(
    demand: Demand, gangs: Sequence[Gang], unit: int, thrift: float
) -> tuple[Any, list[Any]]:
    """The program in multiples of `unit` µs, and how much every gang runs in it.

    thrift: what each device's time counts, beside the end.
    """
    model = minimise("configuration")
    end = model.add_variable("end", 0)
    runs = [model.add_variable(f"run_{index}", 0) for index in range(len(gangs))]
    spent = [gang.devices * gang.us / unit for gang in gangs]
    model += total([(1, end), *((thrift * us, run) for us, run in zip(spent, runs, strict=True))])
    for kind, count in demand.devices.items():
        used = [
            (us, run) for gang, us, run in zip(gangs, spent, runs, strict=True) if gang.kind == kind
        ]
        model += total([*used, (-count, end)]) <= 0, f"device_{kind}"
    for number, (task, own) in enumerate(_of(demand, gangs).items()):
        rounds = [(gangs[at].rounds / demand.steps[task], runs[at]) for at in own]
        model += total(rounds) >= 1, f"steps_{number}"
        busy = [(gangs[at].us / unit, runs[at]) for at in own]
        late = demand.start_us.get(task, 0) / unit
        model += total([*busy, (-1, end)]) <= -late, f"task_{number}"
    return model, runs


def _whole(price: float) -> int:
    return max(0, round(price * _PRICE))


def _proven(
    demand: Demand,
    gangs: Sequence[Gang],
    of: Mapping[str, Sequence[int]],
    found: Prices,
    unit: int,
) -> int:
    """What all steps and starts are worth, in µs of the end: weak duality, in exact numbers."""
    device = {kind: _whole(price) for kind, price in found.device.items()}
    own_time = {task: _whole(price) for task, price in found.task.items()}
    steps = {task: max(1, _whole(price / unit)) for task, price in found.steps.items()}
    worth_of_end = sum(device[kind] * n for kind, n in demand.devices.items())
    worth_of_end += sum(own_time.values())
    if not worth_of_end:
        return 0
    # By how much the prices of a gang's steps must change for a run to be worth what it costs.
    rates = []
    for gang in gangs:
        cost = gang.devices * device[gang.kind] + sum(own_time[t] for t in gang.tasks)
        gain = sum(Fraction(steps[t] * gang.rounds, demand.steps[t]) for t in gang.tasks)
        rates.append(gang.us * cost / gain)
    worth = sum(int(steps[task] * min(rates[at] for at in own)) for task, own in of.items())
    worth += sum(own_time[task] * us for task, us in demand.start_us.items())
    return -(-worth // worth_of_end)
