"""The configuration program against what is known and against timetables."""

import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.time_indexed import CASES, ours, shortest, tiny

from planner.configuration import Demand, configuration
from planner.gangs import Gang, gang
from planner.greedy import greedy
from planner.placement import place
from planner.problem import Effort
from planner.works import Work, makespan
from plans.metrics import duration_us
from plans.schema import Memory, Op, Program


def effort() -> Effort:
    return Effort(time.monotonic() + 10, 0)


works = st.lists(
    st.builds(
        lambda rounds, fixed, period: Work.of("", rounds, fixed, period),
        st.integers(1, 30),
        st.integers(0, 20),
        st.integers(1, 10**6),
    ),
    min_size=1,
    max_size=6,
).map(lambda ws: [replace(w, name=f"t{i}", tasks=(f"t{i}",)) for i, w in enumerate(ws)])


def alone(work: Work, devices: int = 1) -> Gang:
    """The task by itself."""
    return Gang(work.name, work.tasks, "cpu", devices, work.rounds, work.whole_us(0))


def least_us(asked: list[Work], devices: int, *gangs: Gang) -> int:
    """The bound for these works, each alone, and these gangs besides."""
    demand = Demand({w.name: w.rounds for w in asked}, {"cpu": devices})
    return configuration(demand, [*map(alone, asked), *gangs], effort()).us


@given(works, st.integers(1, 8))
def test_single_devices_end_with_the_longest_task_or_the_even_share(
    asked: list[Work], devices: int
) -> None:
    """With gangs of one device the optimum is known, and the bound is exact."""
    whole = [work.whole_us(0) for work in asked]
    assert least_us(asked, devices) == max(*whole, -(-sum(whole) // devices))


@given(works, st.integers(1, 3))
def test_no_timetable_is_below_the_bound(asked: list[Work], devices: int) -> None:
    """Neither the planner's nor a greedy one, whatever it costs to enter and leave."""
    bound = least_us(asked, devices)
    assert makespan(place(asked, (0,) * devices, bound, effort())) >= bound
    for policy in ("lrtf", "lpt", "random"):
        assert makespan(greedy(asked, (0,) * devices, policy, 0)) >= bound


@given(works, st.integers(1, 5))
def test_one_more_device_never_raises_the_bound(asked: list[Work], devices: int) -> None:
    """What fits some devices fits more."""
    assert least_us(asked, devices + 1) <= least_us(asked, devices)


def test_a_pair_that_trains_faster_together_lowers_the_bound() -> None:
    """Two tasks of 1,000 µs that take 1,200 µs in one program, on one device."""
    asked = [Work.of(name, 10, 0, 100) for name in "ab"]
    pair = Gang("a+b", ("a", "b"), "cpu", 1, 10, 1200)
    assert least_us(asked, 1) == 2000
    assert least_us(asked, 1, pair) == 1200
    assert least_us(asked, 2, pair) == 1000


def test_a_wide_gang_runs_while_it_pays() -> None:
    """On two devices a task takes 600 µs instead of 1,000. On two devices two such tasks do best
    alone, on three each runs wide for five eighths of its steps."""
    asked = [Work.of(name, 10, 0, 100) for name in "ab"]
    wide = [Gang(f"{name}-wide", (name,), "cpu", 2, 10, 600) for name in "ab"]
    assert least_us(asked[:1], 2, wide[0]) == 600
    assert least_us(asked, 2, *wide) == 1000
    assert least_us(asked, 3, *wide) == 750


def test_two_kinds_of_devices_share_the_work() -> None:
    """A task that takes twice as long on the other kind: a third of its steps go there."""
    gangs = [Gang("t", ("t",), "cuda", 1, 6, 600), Gang("u", ("u",), "cuda", 1, 6, 600)]
    slow = [Gang(f"{g.program}-slow", g.tasks, "cpu", 1, 6, 1200) for g in gangs]
    demand = Demand({"t": 6, "u": 6}, {"cuda": 1, "cpu": 1})
    assert configuration(demand, [*gangs, *slow], effort()).us == 800


def test_a_task_that_begins_late_ends_late() -> None:
    """Its earliest start and its own time."""
    asked = [Work.of("a", 10, 0, 10), Work.of("b", 10, 0, 1)]
    demand = Demand({w.name: w.rounds for w in asked}, {"cpu": 2}, {"b": 500})
    assert configuration(demand, list(map(alone, asked)), effort()).us == 510


def test_a_task_without_a_gang_is_named() -> None:
    """Nothing could train it."""
    with pytest.raises(ValueError, match="no gang trains b"):
        configuration(
            Demand({"a": 1, "b": 1}, {"cpu": 1}), [alone(Work.of("a", 1, 0, 1))], effort()
        )


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(1, 40))
def test_a_gang_is_never_faster_than_segments_of_its_program(times: list[int], steps: int) -> None:
    """Any number of segments of so many rounds takes what the gang takes, or longer."""
    enter, period, span, leave = times
    op = Op("a.s0.B0", "0.compute", 0, 1)
    program = Program("a", (Memory(1, 1),), ("a",), enter, period, span, leave, (), (), (op,), ())
    made = gang(program, "cpu", {"a": steps})
    for rounds, segments in product(range(1, steps + 1), (1, 2, 3)):
        if rounds < segments:
            continue
        parts = [rounds // segments + (n < rounds % segments) for n in range(segments)]
        us = sum(duration_us(program, part) for part in parts)
        assert us * made.rounds >= rounds * made.us


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fixed", [0, 1])
def test_tiny_timetables_are_as_short_as_any(case: tuple[int, int, int], fixed: int) -> None:
    """Against an integer program over every instant. Where entering costs a unit, one case in ten
    may be a unit longer."""
    longer = 0
    for seed in range(10):
        asked = tiny(*case, fixed=fixed, seed=seed)
        found = ours(asked, case[1])
        longer += found - shortest(asked, case[1], found)
    assert longer <= fixed
