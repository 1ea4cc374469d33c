"""Placement against brute force, and wrap-around against its own rules; starts, deadlines, and the
mean completion."""

import random
import time
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.searches import effort
from support.time_indexed import CASES, alike, least_us, lost, shortest, sound, tiny

from planner.inputs.limits import Limits
from planner.inputs.options import Objective
from planner.inputs.problem import Effort, Want
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Assignment, Job, Run, makespan, score
from planner.timetable.list_schedule import list_schedule
from planner.timetable.local_search import improved

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


BRIEF = Limits(timetable_parts=2_000)  # no search has to come close to a bound


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


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_tiny_cases_are_as_short_as_any(case: tuple[int, int, int]) -> None:
    """Whether entering costs a unit or nothing: of the largest one in all may be a unit longer."""
    longer = 0
    for fixed in (0, 1):
        longer += lost(tiny(*case, fixed=fixed, seed=0), case[1])
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


@given(jobs, st.integers(1, 3))
def test_deadlines_that_a_list_can_keep_are_kept(asked: list[Job], devices: int) -> None:
    """Due are all tasks when they end if they are taken in the order of their names."""
    ends = {p.job: p.end_us for p in list_schedule(asked, range(len(asked)), (0,) * devices)}
    due = [replace(job, want=Want(deadline_us=ends[job.name])) for job in asked]
    pieces = assign_jobs(due, (0,) * devices, 0, effort(BRIEF))
    assert score(due, pieces, "makespan").late_us == 0 or devices > 1


NODE, WIDTHS = 2, (1, 2, 4, 6)  # devices of each of three nodes, and those of a gang there


def gang(name: str, rounds: int, devices: int, fixed: int = 0, period: int = 1) -> Job:
    """A task's job on so many devices at once."""
    return Job(name, rounds, (Run(fixed, period, devices),))


runs = st.tuples(st.integers(0, 20), st.integers(1, 50), st.integers(1, 3)).map(
    lambda found: Run(*found)
)
cases = st.lists(
    st.tuples(st.integers(1, 30), runs, st.none() | runs, st.integers(0, 300)),
    min_size=1,
    max_size=6,
).map(
    lambda found: [
        Job(f"t{n}", rounds, (one, other), Want(start, 2 * start or None, n + 1))
        for n, (rounds, one, other, start) in enumerate(found)
    ]
)


def fitting(runs: tuple[Run | None, ...], devices: tuple[int, ...]) -> tuple[Run | None, ...]:
    """The same on no more devices of each kind than there are."""
    counts = [devices.count(kind) for kind in sorted(set(devices))]
    pairs = zip(counts, runs, strict=False)
    return tuple(run and run._replace(devices=min(run.devices, count)) for count, run in pairs)


@given(
    cases,
    st.sampled_from([(0, 0, 0, 1, 1, 1), (0, 0, 0), (0, 1, 1), (0, 0), (0,)]),
    st.booleans(),
    st.booleans(),
)
def test_gangs_run_on_as_many_devices_as_they_take(
    asked: list[Job], devices: tuple[int, ...], late: bool, mean: bool
) -> None:
    """For either objective, with and without starts and deadlines, on one kind or two."""
    jobs = asked if late else [replace(job, want=Want(weight=2)) for job in asked]
    jobs = [replace(job, runs=fitting(job.runs, devices)) for job in jobs]
    objective: Objective = "completion" if mean else "makespan"
    sound(jobs, devices, assign_jobs(jobs, devices, 0, effort(BRIEF), objective))


def tiny_gangs(tasks: int, devices: int, seed: int) -> list[Job]:
    """Jobs of a few units on one to all devices, with and without a unit to enter."""
    rng = random.Random(f"{tasks} {devices} {seed}")
    return [
        gang(f"t{n}", rng.randint(1, 3), rng.randint(1, devices), rng.randint(0, 1))
        for n in range(tasks)
    ]


@pytest.mark.parametrize(("tasks", "devices"), [(3, 2), (4, 3)])
def test_tiny_gangs_are_as_short_as_any_timetable(tasks: int, devices: int) -> None:
    """Against the integer program over every instant: never more than a unit longer, and that in
    one case of three at most."""
    longer = []
    for seed in range(3):
        jobs = tiny_gangs(tasks, devices, seed)
        found = makespan(assign_jobs(jobs, (0,) * devices, 0, effort(BRIEF)))
        longer.append(found - shortest(jobs, (0,) * devices, least_us(jobs, devices)))
    assert max(longer) <= 1
    assert sum(longer) <= 1, longer


@settings(max_examples=6)
@given(cases)
def test_changes_never_make_a_timetable_worse(asked: list[Job]) -> None:
    devices = (0, 0, 0, 1, 1, 1)
    first = list_schedule(asked, range(len(asked)), devices)
    sound(asked, devices, first)
    for objective in ("makespan", "completion"):
        better = improved(asked, first, devices, 0, objective, BRIEF)
        sound(asked, devices, better)
        assert score(asked, better, objective) <= score(asked, first, objective)


on_nodes = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 20), st.integers(1, 50), st.sampled_from(WIDTHS)),
    min_size=1,
    max_size=6,
)


@given(on_nodes)
def test_jobs_are_on_one_node_or_on_whole_ones(asked: list[tuple[int, int, int, int]]) -> None:
    jobs = [
        Job(f"t{n}", rounds, (Run(fixed, period, devices, NODE),))
        for n, (rounds, fixed, period, devices) in enumerate(asked)
    ]
    devices = (0,) * 3 * NODE
    pieces = assign_jobs(jobs, devices, 0, effort(BRIEF))
    sound(jobs, devices, pieces)
    begun: dict[str, list[int]] = {}
    for piece in pieces:
        nodes = [device // NODE for device in piece.devices]
        each = min(NODE, len(nodes))
        assert nodes == [n for n in range(nodes[0], nodes[-1] + 1) for _ in range(each)]
        assert begun.setdefault(piece.job, nodes) == nodes
