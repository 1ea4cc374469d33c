"""Placement against brute force, and wrap-around against its own rules; starts, deadlines, and the
mean completion."""

import time
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.searches import effort
from support.time_indexed import CASES, alike, lost, tiny

from planner.inputs.limits import Limits
from planner.inputs.problem import Effort, Want
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Assignment, Chunk, Job, Run, makespan, score
from planner.timetable.list_schedule import list_schedule
from planner.timetable.simulate import simulate

jobs = st.lists(
    st.builds(
        lambda rounds, fixed, period: alike("", rounds, fixed, period),
        st.integers(1, 30),
        st.integers(0, 20),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=5,
).map(lambda ws: [replace(w, name=f"t{i}") for i, w in enumerate(ws)])


BRIEF = Limits(timetable_parts=2_000)
"""For tests that look at many timetables, each of which no search has to come close to a bound."""


def placed(asked: list[Job], devices: int) -> list[Assignment]:
    floor = max(job.us(0, job.rounds) - job.us(0, 0) for job in asked)
    return assign_jobs(asked, (0,) * devices, floor, effort(BRIEF))


@given(jobs, st.integers(1, 3))
def test_no_assignment_of_whole_tasks_is_shorter(asked: list[Job], devices: int) -> None:
    """All ways to put whole tasks on devices, tried one by one. Pieces come by their starts."""
    best = min(
        max(
            sum(w.us(0, w.rounds) for w, d in zip(asked, where, strict=True) if d == device)
            for device in range(devices)
        )
        for where in product(range(devices), repeat=len(asked))
    )
    pieces = placed(asked, devices)
    assert makespan(pieces) <= best
    assert [p.start_us for p in pieces] == sorted(p.start_us for p in pieces)


def test_three_equal_tasks_on_two_devices_are_wrapped() -> None:
    """One task changes devices in the middle, and no device idles."""
    pieces = placed([alike(f"t{i}", 100, 0, 10) for i in range(3)], 2)
    assert makespan(pieces) == 1500
    assert len(pieces) == 4


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 2), st.integers(1, 3))
def test_unit_tasks_are_as_short_as_any_timetable(
    rounds: list[int], fixed: int, devices: int
) -> None:
    """Against the integer program over every instant."""
    asked = [alike(f"t{i}", n, fixed, 1) for i, n in enumerate(rounds)]
    assert lost(asked, devices) == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_tiny_cases_are_as_short_as_any(case: tuple[int, int, int]) -> None:
    """Six seeds each, whether entering costs a unit or nothing: one in all may be a unit longer."""
    longer = 0
    for fixed in (0, 1):
        for seed in range(6):
            longer += lost(tiny(*case, fixed=fixed, seed=seed), case[1])
    assert longer <= (case == CASES[-1])


def test_long_tasks_do_not_hold_up_the_solver() -> None:
    """Hours in µs are coefficients on which HiGHS would not return; they are scaled."""
    hours = [9346653556, 3787324501, 9164305467, 10076150518, 14943924136]
    asked = [alike(f"t{i}", 1, us - 1, 1) for i, us in enumerate(hours)]
    pieces = assign_jobs(asked, (0,) * 3, 0, Effort(time.monotonic() + 2, 0))
    assert makespan(pieces) <= 18_510_959_023  # longest first reaches this


@given(jobs, st.integers(1, 4))
def test_without_costs_to_enter_no_device_idles(asked: list[Job], devices: int) -> None:
    """Tasks of 1 µs rounds that cost nothing to enter are done at the even share, or when the
    longest task is."""
    free = [replace(job, runs=(Run(0, 1),)) for job in asked]
    rounds = [job.rounds for job in free]
    assert makespan(placed(free, devices)) == max(*rounds, -(-sum(rounds) // devices))


@given(jobs, st.integers(1, 3))
def test_one_more_device_is_never_slower(asked: list[Job], devices: int) -> None:
    """Whatever tasks cost to enter."""
    assert makespan(placed(asked, devices + 1)) <= makespan(placed(asked, devices))


def completed(asked: list[Job], pieces: list[Assignment]) -> int:
    return score(asked, pieces, "completion").value


@given(jobs, st.integers(1, 3), st.integers(0, 1000))
def test_no_list_of_whole_tasks_completes_sooner_on_average(
    asked: list[Job], devices: int, seed: int
) -> None:
    """All orders tried one by one: the shortest first is best."""
    tasks = asked[:4]
    found = assign_jobs(tasks, (0,) * devices, 0, effort(BRIEF), "completion")
    best = min(
        completed(tasks, list_schedule(tasks, o, (0,) * devices))
        for o in permutations(range(len(tasks)))
    )
    assert completed(tasks, found) == best


def test_what_weighs_more_comes_first() -> None:
    """On one device, by length over weight."""
    asked = [alike("a", 10, 0, 1), replace(alike("b", 20, 0, 1), want=Want(weight=4))]
    pieces = assign_jobs(asked, (0,), 0, effort(BRIEF), "completion")
    assert [piece.job for piece in pieces] == ["b", "a"]


@given(jobs, st.integers(1, 3))
def test_deadlines_that_a_list_can_keep_are_kept(asked: list[Job], devices: int) -> None:
    """Due are all tasks when they end if they are taken in the order of their names."""
    ends = {p.job: p.end_us for p in list_schedule(asked, range(len(asked)), (0,) * devices)}
    due = [replace(job, want=Want(deadline_us=ends[job.name])) for job in asked]
    pieces = assign_jobs(due, (0,) * devices, 0, effort(BRIEF))
    assert score(due, pieces, "makespan").late_us == 0 or devices > 1


@given(jobs, st.integers(1, 3))
def test_chunks_give_the_assignments_they_were_made_of(asked: list[Job], devices: int) -> None:
    """A timetable of whole tasks, taken apart and put together again."""
    made = list_schedule(asked, range(len(asked)), (0,) * devices)
    chunks = [
        Chunk([j.name for j in asked].index(one.job), one.rounds, one.devices) for one in made
    ]
    assert simulate(asked, chunks, (0,) * devices) == made
