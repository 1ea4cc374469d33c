"""Columns of strategies, what a plan takes of them, and effort where it counts."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from planner import Problem, build
from planner.answers import found, searched
from planner.columns import Columns, columns, settled, taken
from planner.configuration import Demand, Prices, configuration
from planner.gangs import Gang
from planner.problem import Effort
from planner.strategies import Known, Offer, alone
from planner.worth import counting
from plans.metrics import duration_us
from plans.schema import Plan
from profiles import synthetic


def effort(seconds: float = 60) -> Effort:
    return Effort(time.monotonic() + seconds, 0)


def problem(*names: str, devices: int = 2) -> Problem:
    """Tasks of one small shape."""
    task = synthetic.task("t", layers=1, steps=10)
    tasks = [structs.replace(task, name=name) for name in names]
    profile = synthetic.profile(*tasks, usable_bytes=64 << 20)
    return Problem.of(profile, devices=devices, device_bytes=None, host_bytes=None)


def offer(tasks: str, us: int, *, devices: int = 1, choices: str = "", rounds: int = 10) -> Offer:
    """A gang of tasks named by letters, each with the choice of its letter's place."""
    made = Gang("+".join(tasks), tuple(tasks), "cpu", devices, rounds, us)
    return Offer(made, tuple(choices or "-" * len(tasks)))


def solved(offers: Iterable[Offer], demand: Demand) -> Columns:
    held = tuple(offers)
    return Columns(held, configuration(demand, [one.gang for one in held], effort()))


def test_a_strategy_of_its_own_is_one_more_function() -> None:
    """One that has a task on two devices, in three fifths of its time. By hand, for two tasks on
    three devices: each runs wide for a part x of its steps, so that its own time 1 - x + 3x/5 and
    a third of the devices' time 2 (1 - x) + 2 * 6x/5 are the same: x = 5/8."""
    asked = problem("a", "b", devices=3)
    known = Known(searched(asked, effort(), 1), effort())
    (one, other) = (part.gang for part in alone(known, None))
    assert one.us == other.us

    def wide(of: Known, prices: Prices | None) -> Iterator[Offer]:
        for gang in (one, other):
            made = replace(gang, program=f"{gang.program}-wide", devices=2, us=gang.us * 3 // 5)
            if prices and prices.gain(made, {"a": 10, "b": 10}) > 0:
                yield Offer(made, ("wide",))

    apart = columns(known, (alone,)).found.us
    assert columns(known, (alone, wide)).found.us == pytest.approx(0.75 * apart, rel=1e-3)


def shortest(tasks: int, devices: int, units: dict[tuple[int, int], int]) -> float:
    """The least end of a fluid schedule in which each task runs wide for so many tenths of its
    steps, by trying all."""
    best = float("inf")
    for tenths in product(range(11), repeat=tasks):
        spent, longest = 0.0, 0.0
        for task, part in enumerate(tenths):
            narrow, wide = units[task, 1] * (10 - part) / 10, units[task, 2] * part / 10
            spent += narrow + 2 * wide
            longest = max(longest, narrow + wide)
        best = min(best, max(longest, spent / devices))
    return best


@given(
    st.lists(st.tuples(st.integers(50, 100), st.integers(30, 100)), min_size=1, max_size=3),
    st.integers(2, 4),
)
def test_gangs_of_several_devices_end_as_soon_as_any_mix(
    times: list[tuple[int, int]], devices: int
) -> None:
    """Against all mixes in tenths: never later, and sooner by what tenths are too coarse for."""
    units = {(t, k + 1): us * 1_000 for t, own in enumerate(times) for k, us in enumerate(own)}
    gangs = [Gang(f"{t}-{k}", (str(t),), "cpu", k, 10, us) for (t, k), us in units.items()]
    demand = Demand({str(t): 10 for t in range(len(times))}, {"cpu": devices})
    best = shortest(len(times), devices, units)
    least = configuration(demand, gangs, effort()).us
    assert 0.85 * best <= least <= best + 1


def test_columns_are_added_only_where_they_gain() -> None:
    """The price of a pair that is no faster than its tasks leaves no gain, that of a faster one
    does."""
    demand = Demand({"a": 10, "b": 10}, {"cpu": 1})
    prices = solved([offer("a", 1000), offer("b", 1000)], demand).found.prices
    assert prices
    assert prices.gain(offer("ab", 2000).gang, demand.steps) <= 1e-6
    assert prices.gain(offer("ab", 1800).gang, demand.steps) == pytest.approx(200)


def test_a_task_shares_its_device_by_one_choice() -> None:
    """b with a and with c in the same part of the memory; a faster program in which b has another
    part is not taken, since then b could not share with c."""
    demand = Demand({"a": 10, "b": 20, "c": 10}, {"cpu": 1})
    own = {"a": 1000, "b": 2000, "c": 1000}
    offers = [
        *(offer(name, us, rounds=us // 100) for name, us in own.items()),
        *(offer(name, us * 11 // 10, choices="q", rounds=us // 100) for name, us in own.items()),
        offer("b", 2200, choices="r", rounds=20),
        offer("ab", 1500, choices="qq"),
        offer("ab", 1400, choices="qr"),
        offer("bc", 1500, choices="qq"),
    ]
    made = solved(offers, demand)
    choices = settled(made, demand, effort())
    assert choices == {"a": "q", "b": "q", "c": "q"}
    assert [(one.gang.program, n) for one, n in taken(made, choices, demand, effort())] == [
        ("a+b", 10),
        ("b+c", 10),
    ]


@given(st.data())
def test_no_task_is_given_more_rounds_than_it_has_steps(data: st.DataObject) -> None:
    """Nor two choices, whatever the gangs."""
    names = "abcd"[: data.draw(st.integers(2, 4))]
    steps = {name: data.draw(st.integers(1, 30)) for name in names}
    offers = []
    for choice in "pq":
        for name in names:
            us = data.draw(st.integers(500, 1500))
            offers.append(offer(name, us, choices=choice, rounds=steps[name]))
        for one, other in pairwise(names):
            us, rounds = data.draw(st.integers(500, 2000)), min(steps[one], steps[other])
            offers.append(offer(one + other, us, choices=choice * 2, rounds=rounds))
    demand = Demand(steps, {"cpu": data.draw(st.integers(1, 2))})
    made = solved(offers, demand)
    choices = settled(made, demand, effort())
    for one, rounds in taken(made, choices, demand, effort()):
        assert [choices[task] for task in one.gang.tasks] == [*one.choices]
        for task in one.gang.tasks:
            steps[task] -= rounds
    assert min(steps.values()) >= 0


def shapes(*steps: int) -> Problem:
    """Tasks of as many shapes that spill, one device each."""
    tasks = [
        synthetic.task(f"t{i}", layers=4 + i % 2, seed=i, steps=count)
        for i, count in enumerate(steps)
    ]
    profile = synthetic.profile(*tasks, usable_bytes=8 << 20)
    return Problem.of(profile, devices=len(steps), device_bytes=None, host_bytes=None)


def test_only_tasks_that_end_last_are_searched_in_full() -> None:
    """Of three tasks on devices of their own, one of which takes ten times as long."""
    asked = shapes(1_000, 10_000, 900)
    own = searched(asked, effort(), 1, quick=True)
    keys = counting(own, effort())
    assert [own.shapes.first[key].name for key in keys] == ["t1"]


def makespan(plan: Plan) -> int:
    return plan.prediction.makespan_us


def test_effort_where_it_counts_costs_nothing() -> None:
    """The plan ends when the one task that matters does, as found by the full search."""
    asked = shapes(1_000, 10_000, 900)
    plan = build(asked, profile_sha256="0" * 64)
    programs = [answer.program for answer in found(asked, effort(), 1)]
    assert makespan(plan) <= duration_us(programs[1], 10_000)
