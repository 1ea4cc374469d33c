"""Sets of programs that run at the same time: the shortest schedule of gangs, interrupted at will.

    minimise the sum of x_s               over x_s >= 0, the time for which the set s runs
    every task        sum of its parts  >=  1

A set has one column of a task at most, and no more devices of a kind than there are. So a schedule
that interrupts its tasks for nothing ends when the sets do, and none ends sooner. Sets are found
when they are needed: the dual says what a part of each task is worth, and the set that earns most
in a µs is added, until none earns more than that µs. Rounded to whole numbers this is a proof.

The configuration program sums devices up and is far quicker. Gangs may not fit beside each other
as sums do: three gangs of two devices run one after the other on three.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from planner.bounds import Column, Demand, Status, duals, minimise, solve, total
from planner.inputs import Effort

_PRICE = 10**9  # prices are whole multiples of 1 / _PRICE µs
_NEAR = 10**6  # sets that earn 1/n more than their time are not worth another solution
_SECONDS = 5.0  # for a program, which takes a moment, also when time is up


class Slice(NamedTuple):
    """Columns, by their position, that run at the same time for so many µs."""

    us: float
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Sets:
    """us: no schedule of the columns ends sooner. slices: in any order, one that ends about then if
    segments cost nothing to enter, leave and move."""

    us: int
    slices: tuple[Slice, ...]


def sets(demand: Demand, columns: Sequence[Column], effort: Effort) -> Sets:
    """The shortest schedule, or one near it where that takes more sets than `limits.gang_sets`."""
    found: list[tuple[int, ...]] = [(at,) for at in range(len(columns))]
    best, slices = 0, tuple(Slice(one.us, (at,)) for at, one in enumerate(columns))
    for _ in range(effort.limits.gang_sets):
        solved = _solved(columns, found, effort)
        if solved is None:
            break
        slices, worth = solved
        earned, chosen = richest(demand, columns, worth)
        # At these prices no set earns more in a µs, so all tasks take as long as this at least.
        best = max(best, -(-sum(worth.values()) // earned))
        if earned * _NEAR <= _PRICE * (_NEAR + 1) or chosen in found:
            break
        found.append(chosen)
    return Sets(best, slices)


def _solved(
    columns: Sequence[Column], found: Sequence[tuple[int, ...]], effort: Effort
) -> tuple[tuple[Slice, ...], dict[str, int]] | None:
    """The time of each of these sets in the shortest schedule of them, and the worth of each task;
    None when the solver has no answer."""
    unit = max(one.us for one in columns) or 1
    model = minimise("sets")
    runs = [model.add_variable(f"set_{number}", 0) for number in range(len(found))]
    model += total((1, run) for run in runs)
    of: dict[str, list[tuple[float, object]]] = {one.task: [] for one in columns}
    for chosen, run in zip(found, runs, strict=True):
        for at in chosen:
            of[columns[at].task].append((unit / max(1, columns[at].us), run))
    for number, parts in enumerate(of.values()):
        model += total(parts) >= 1, f"task_{number}"
    if solve(model, seconds=max(_SECONDS, effort.left), seed=effort.seed) is not Status.FOUND:
        return None
    prices = duals(model)
    worth = {
        task: max(0, round(prices[f"task_{number}"] * unit * _PRICE))
        for number, task in enumerate(of)
    }
    times = zip((run.value() for run in runs), found, strict=True)
    return tuple(Slice(x * unit, chosen) for x, chosen in times if x * unit >= 0.5), worth


def richest(
    demand: Demand, columns: Sequence[Column], worth: dict[str, int]
) -> tuple[int, tuple[int, ...]]:
    """The set that earns most in a µs, where all of a task is worth so much, and what it earns, at
    least: exact, by how many devices of each kind are taken."""
    kinds = list(demand.devices)
    room = tuple(demand.devices.values())
    options: dict[str, list[tuple[int, int, int, int]]] = {one.task: [] for one in columns}
    for at, one in enumerate(columns):
        if worth[one.task]:
            earns = -(-worth[one.task] // max(1, one.us))
            options[one.task].append((at, kinds.index(one.kind), one.devices, earns))
    best: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {(0,) * len(room): (0, ())}
    for own in options.values():
        for (taken, (sum_, chosen)), (at, kind, count, earns) in list(product(best.items(), own)):
            more = (*taken[:kind], taken[kind] + count, *taken[kind + 1 :])
            if more[kind] <= room[kind] and sum_ + earns > best.get(more, (0, ()))[0]:
                best[more] = sum_ + earns, (*chosen, at)
    earned, chosen = max(best.values())
    return max(1, earned), chosen
