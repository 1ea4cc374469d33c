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

from planner.bounds.solver import Status, duals, minimise, solve, total
from planner.inputs import Effort, Problem
from plans.schema import Program
from plans.timing import Runs, duration_us, kinds_of

_PRICE = 10**12  # prices are whole multiples of 1 / _PRICE
_LEAST_SECONDS = 5.0  # for the program, which takes a moment, also when time is up


@dataclass(frozen=True)
class Column:
    """All steps of a task by one program, on some devices of one kind.

    They take `us` at best: n of the N steps, in any number of segments, at least n * us / N. Where
    samples have lengths all steps are this column's, and some may take less of it than others.
    """

    task: str
    kind: str
    us: int
    devices: int = 1


def column(program: Program, kind: str, steps: int, turns: Runs = ()) -> Column:
    """The column of a program that trains one task. turns: the kinds of its rounds in turn.

    Entering and leaving is spread over all steps: a schedule that runs fewer of them pays it too.
    """
    (task,), kinds = program.tasks, kinds_of(program)
    least, once = duration_us(program, steps, turns), program.enter_us + program.leave_us
    for number, rounds in turns or ((0, steps),):  # to cut a run may be shorter than to go on
        least += (rounds - 1) * min(0, once + kinds[number].round_us - kinds[number].period_us)
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
class Configuration:
    """us: no schedule of the columns ends sooner. parts: of its task that each column trains, in a
    schedule that ends about then if segments cost nothing to enter, leave and move."""

    us: int
    parts: tuple[float, ...]


def configuration(
    demand: Demand, columns: Sequence[Column], effort: Effort, *, serial: bool = True
) -> Configuration:
    """The proven bound and the part of every column; a bound of 0 when the solver has no answer.

    serial: no task takes more than one place at a time.
    """
    tasks = dict.fromkeys(one.task for one in columns if serial)
    model, runs = model_of(demand, columns, tasks)
    seconds = max(_LEAST_SECONDS, effort.left)
    if solve(model, seconds=seconds, seed=effort.seed) is not Status.FOUND:
        return Configuration(0, (0.0,) * len(columns))
    found = duals(model)
    device = {kind: _whole(-found[f"device_{kind}"]) for kind in demand.devices}
    own = {task: _whole(-found[f"task_{number}"]) for number, task in enumerate(tasks)}
    parts = tuple(run.value() for run in runs)
    return Configuration(proven_us(demand, columns, device, own), parts)


def even_us(demand: Demand, columns: Sequence[Column]) -> int:
    """A bound as if a task could train on any number of devices at the same time: all tasks shared
    out evenly, each in any parts to the devices of any kind."""
    even = proven_us(demand, columns, dict.fromkeys(demand.devices, 1), {})
    if len(demand.devices) == 1:
        return even
    return max(even, configuration(demand, columns, Effort(0, 0), serial=False).us)


def proven_us(
    demand: Demand, columns: Iterable[Column], device: Mapping[str, int], own: Mapping[str, int]
) -> int:
    """A bound by weak duality, true at any prices, in exact numbers: every task costs at least what
    its cheapest column does; what is asked for so long is worth all prices together.

    device: the worth of a µs of a device's time, by its kind; own: of a task's own time; in whole
    multiples of an arbitrary unit.
    """
    end = sum(device[kind] * count for kind, count in demand.devices.items()) + sum(own.values())
    if not end:
        return 0
    least: dict[str, int] = {}
    for one in columns:
        cost = one.us * (one.devices * device[one.kind] + own.get(one.task, 0))
        least[one.task] = min(cost, least.get(one.task, cost))
    starts = sum(own.get(task, 0) * us for task, us in demand.start_us.items())
    return -(-(sum(least.values()) + starts) // end)


def _whole(price: float) -> int:
    return max(0, round(price * _PRICE))


def model_of(
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
