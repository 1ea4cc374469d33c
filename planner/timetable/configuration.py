"""The configuration program: a bound on any schedule of given programs, and its shares.

    minimise T                            over x_c >= 0, the part of its task that column c trains
    every task        sum of its parts       >=  1
    every kind        sum of device time     <=  devices * T
    every task        sum of its own time    <=  T - its earliest start

Its optimum is the best that segments could reach if they could be cut anywhere. With one device for
each task it is the longest task or the even share, whichever is more. The bound does not trust the
solver: what it says a device's time and a task's time are worth is rounded to whole numbers, and no
schedule can be shorter than all tasks cost at least at these prices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.inputs import Effort, Problem
from planner.lp import duals, minimise, solve, total
from plans.metrics import duration_us
from plans.schema import Program

_PRICE = 10**12  # prices are whole multiples of 1 / _PRICE
_CHOICE_SECONDS = 10.0  # for the program with one strategy for each task
_LEAST_SECONDS = 5.0  # for the program, which takes a moment, also when time is up
_TIE_BREAK = 1e-4  # what the mean time that devices are used counts beside the end


@dataclass(frozen=True)
class Column:
    """All steps of a task by one program, on some devices of one kind.

    They take `us` at best: n of the N steps, in any number of segments, at least n * us / N.
    """

    task: str
    kind: str
    us: int
    devices: int = 1


def column(program: Program, kind: str, steps: int) -> Column:
    """The column of a program that trains one task.

    Entering and leaving is spread over all steps: a schedule that runs fewer of them pays it too.
    """
    (task,) = program.tasks
    least = min(duration_us(program, steps), steps * duration_us(program, 1))
    return Column(task, kind, least, program.devices)


@dataclass(frozen=True)
class Demand:
    """The demand: the devices of every kind, and tasks' earliest starts in µs."""

    devices: Mapping[str, int]
    start_us: Mapping[str, int] = field(default_factory=dict)


def demand_of(problem: Problem) -> Demand:
    """The devices and starts of a problem."""
    starts = {name: want.start_us for name, want in problem.wants.items()}
    return Demand({kind.name: kind.count for kind in problem.kinds}, starts)


@dataclass(frozen=True)
class Prices:
    """The worth of a µs of a device's time, by its kind, and of a task's own time; in whole
    multiples of an arbitrary unit."""

    device: Mapping[str, int]
    task: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Configuration:
    """us: no schedule of the columns ends sooner. parts: of its task that each column trains, in a
    schedule that ends about then if segments cost nothing to enter, leave and move."""

    us: int
    parts: tuple[float, ...]


def configuration(demand: Demand, columns: Sequence[Column], effort: Effort) -> Configuration:
    """The proven bound and the part of every column; a bound of 0 when the solver has no answer."""
    tasks = dict.fromkeys(one.task for one in columns)
    model, runs = _program(demand, columns, tasks)
    if not solve(model, seconds=max(_LEAST_SECONDS, effort.left), seed=effort.seed).found:
        return Configuration(0, (0.0,) * len(columns))
    found = duals(model)
    prices = Prices(
        {kind: _whole(-found[f"device_{kind}"]) for kind in demand.devices},
        {task: _whole(-found[f"task_{number}"]) for number, task in enumerate(tasks)},
    )
    return Configuration(proven_us(demand, columns, prices), tuple(run.value() for run in runs))


def settled(
    problem: Problem, ways: Sequence[Sequence[Sequence[Program | None]]], effort: Effort
) -> list[int]:
    """The number of one strategy for every task, which it keeps on all kinds of devices: those that
    let all tasks end soonest, or where there are too many to say so, those by which the program
    trains most of each task. ways: of each task its strategies, each as a program for each kind."""
    if all(len(own) == 1 for own in ways):
        return [0] * len(ways)
    columns, of = [], []
    for number, (task, own) in enumerate(zip(problem.tasks, ways, strict=True)):
        for strategy, programs in enumerate(own):
            for kind, program in zip(problem.kinds, programs, strict=True):
                if program:
                    columns.append(column(program, kind.name, task.steps))
                    of.append((number, strategy))
    demand, parts = demand_of(problem), None
    if sum(map(len, ways)) <= effort.limits.chosen_binaries:
        parts = _one_choice_each(demand, columns, of, effort)
    trained = [[0.0] * len(own) for own in ways]
    found = parts or configuration(demand, columns, effort).parts
    for (number, strategy), part in zip(of, found, strict=True):
        trained[number][strategy] += part
    return [each.index(max(each)) for each in trained]


def _one_choice_each(
    demand: Demand, columns: Sequence[Column], of: Sequence[tuple[int, int]], effort: Effort
) -> list[float] | None:
    """The part of every column where each task is trained by columns of one strategy only; None
    where that is not solved in time. of: the task and the strategy of each column."""
    model, parts = _program(demand, columns, dict.fromkeys(c.task for c in columns), _TIE_BREAK)
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


def even_us(demand: Demand, columns: Sequence[Column]) -> int:
    """A bound as if a task could train on any number of devices at the same time: all tasks shared
    out evenly, each in any parts to the devices of any kind."""
    same = Prices(dict.fromkeys(demand.devices, 1))
    ends = [proven_us(demand, columns, same)]
    if len(demand.devices) > 1:
        model, _ = _program(demand, columns)
        if solve(model, seconds=_LEAST_SECONDS, seed=0).found:
            found = duals(model)
            prices = {kind: _whole(-found[f"device_{kind}"]) for kind in demand.devices}
            ends.append(proven_us(demand, columns, Prices(prices)))
    return max(ends)


def proven_us(demand: Demand, columns: Iterable[Column], prices: Prices) -> int:
    """A bound by weak duality, true at any prices, in exact numbers: every task costs at least what
    its cheapest column does; what is asked for so long is worth all prices together."""
    end = sum(prices.device[kind] * count for kind, count in demand.devices.items())
    end += sum(prices.task.values())
    if not end:
        return 0
    least: dict[str, int] = {}
    for one in columns:
        cost = one.us * (one.devices * prices.device[one.kind] + prices.task.get(one.task, 0))
        least[one.task] = min(cost, least.get(one.task, cost))
    starts = sum(prices.task.get(task, 0) * us for task, us in demand.start_us.items())
    return -(-(sum(least.values()) + starts) // end)


def _whole(price: float) -> int:
    return max(0, round(price * _PRICE))


def _program(
    demand: Demand, columns: Sequence[Column], serial: Iterable[str] = (), tie_break: float = 0.0
) -> tuple[Any, list[Any]]:
    """The program, in multiples of the longest column's time, and the part of every column.

    serial: the tasks that take no more than one place at a time.
    """
    unit = max(one.us for one in columns) or 1
    thrift = tie_break / max(1, sum(demand.devices.values()))
    model = minimise("configuration")
    end = model.add_variable("end", 0)
    parts = [model.add_variable(f"part_{index}", 0) for index in range(len(columns))]
    spent = [one.devices * one.us / unit for one in columns]
    model += total(
        [(1, end), *((thrift * us, part) for us, part in zip(spent, parts, strict=True))]
    )
    for kind, count in demand.devices.items():
        used = [
            (us, part)
            for one, us, part in zip(columns, spent, parts, strict=True)
            if one.kind == kind
        ]
        model += total([*used, (-count, end)]) <= 0, f"device_{kind}"
    of: dict[str, list[int]] = {}
    for index, one in enumerate(columns):
        of.setdefault(one.task, []).append(index)
    for own in of.values():
        model += total((1, parts[at]) for at in own) >= 1
    for number, task in enumerate(serial):
        busy = [(columns[at].us / unit, parts[at]) for at in of[task]]
        late = demand.start_us.get(task, 0) / unit
        model += total([*busy, (-1, end)]) <= -late, f"task_{number}"
    return model, parts
