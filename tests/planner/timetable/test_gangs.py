"""Timetables with gangs against the program over every instant, and against bounds."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.searches import effort
from support.time_indexed import least_us, shortest, sound

from planner.bounds.configuration import Column, Demand
from planner.inputs.limits import Limits
from planner.inputs.options import Objective
from planner.inputs.problem import Effort, Want
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.initial import in_sets, wrapped
from planner.timetable.jobs import Chunk, Job, Run, makespan, score
from planner.timetable.list_schedule import list_schedule
from planner.timetable.local_search import improved
from planner.timetable.sets import sets
from planner.timetable.simulate import simulate

BRIEF = Limits(timetable_parts=2_000)
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


@settings(max_examples=60)
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


def tiny(tasks: int, devices: int, seed: int) -> list[Job]:
    """Jobs of a few units on one to all devices, with and without a unit to enter."""
    rng = random.Random(f"{tasks} {devices} {seed}")
    return [
        gang(f"t{n}", rng.randint(1, 3), rng.randint(1, devices), rng.randint(0, 1))
        for n in range(tasks)
    ]


@pytest.mark.parametrize(("tasks", "devices"), [(3, 2), (4, 3), (5, 3)])
def test_tiny_gangs_are_as_short_as_any_timetable(tasks: int, devices: int) -> None:
    """Against the integer program over every instant: never more than a unit longer, and that in
    one case of six at most."""
    longer = []
    for seed in range(6):
        jobs = tiny(tasks, devices, seed)
        found = makespan(assign_jobs(jobs, (0,) * devices, 0, effort(BRIEF)))
        longer.append(found - shortest(jobs, (0,) * devices, least_us(jobs, devices)))
    assert max(longer) <= 1
    assert sum(longer) <= 1, longer


def test_sets_follow_each_other_and_works_keep_their_devices() -> None:
    """Two gangs of two, and two jobs alone, on three devices: one behind each gang."""
    jobs = [gang("a", 100, 2), gang("b", 100, 2), gang("c", 100, 1), gang("d", 100, 1)]
    pieces = in_sets(jobs, (0, 0, 0), effort(BRIEF))
    sound(jobs, (0, 0, 0), pieces)
    assert makespan(pieces) == 200
    assert len(pieces) == 4


def test_gangs_fit_beside_each_other_also_when_time_is_up() -> None:
    """What is chosen late is placed as well as any."""
    rng = random.Random(1)
    jobs = [gang(f"t{n}", rng.randint(100, 400), rng.choice([1, 1, 2, 3])) for n in range(10)]
    columns = [Column(job.name, "cpu", job.us(0, job.rounds), job.width) for job in jobs]
    least = sets(Demand({"cpu": 4}), columns, effort(BRIEF)).us
    late = Effort(time.monotonic() - 1, 0, BRIEF)
    assert makespan(in_sets(jobs, (0,) * 4, late)) <= 1.02 * least


def test_works_are_wrapped_around_behind_gangs() -> None:
    """A gang on two of three devices, and jobs that no whole assignment shares out evenly."""
    jobs = [gang("g", 100, 2), *(gang(f"t{n}", 110, 1) for n in range(4))]
    devices = (0, 0, 0)
    pieces = wrapped(jobs, devices, 0, effort(BRIEF))
    sound(jobs, devices, pieces)
    assert makespan(pieces) == 214
    assert {piece.start_us for piece in pieces if piece.job == "g"} == {0}


def test_many_works_beside_few_gangs_end_with_the_even_share() -> None:
    """Too many for sets: 300 jobs on 16 devices."""
    rng = random.Random(0)
    jobs = [gang(f"t{n}", rng.randint(500, 1500), 1, 5) for n in range(300)]
    jobs += [gang(f"g{n}", 9_000, 3, 5) for n in range(3)]
    share = sum(job.us(0, job.rounds) * job.width for job in jobs) // 16
    pieces = assign_jobs(jobs, (0,) * 16, share, effort(BRIEF))
    sound(jobs, (0,) * 16, pieces)
    assert makespan(pieces) <= share * 1.002


@settings(max_examples=12)
@given(cases)
def test_changes_never_make_a_timetable_worse(asked: list[Job]) -> None:
    """From a list of whole jobs on."""
    devices = (0, 0, 0, 1, 1, 1)
    first = list_schedule(asked, range(len(asked)), devices)
    sound(asked, devices, first)
    for objective in ("makespan", "completion"):
        better = improved(asked, first, devices, 0, objective, BRIEF)
        sound(asked, devices, better)
        assert score(asked, better, objective) <= score(asked, first, objective)


def test_works_are_cut_where_that_fills_a_gap() -> None:
    """Beside a gang on two of three devices: first one, then the other."""
    jobs = [gang("g", 60, 2), gang("a", 100, 1), gang("b", 100, 1)]
    first = simulate(jobs, [Chunk(0, 60), Chunk(1, 100), Chunk(2, 100)], (0, 0, 0))
    assert makespan(first) == 160
    assert makespan(improved(jobs, first, (0, 0, 0), 130, "makespan", BRIEF)) == 130


def test_a_share_that_goes_on_on_its_devices_is_no_piece_of_its_own() -> None:
    """Entered once; on other devices, or after others, it enters again."""
    jobs = [gang("g", 30, 2, 5), gang("a", 10, 1, 5)]
    shares = [Chunk(0, 10, (0, 1)), Chunk(0, 10, (0, 1)), Chunk(1, 10, (1,)), Chunk(0, 10, (0, 1))]
    pieces = simulate(jobs, shares, (0, 0, 0))
    assert [(p.job, p.rounds, p.start_us, p.end_us) for p in pieces] == [
        ("g", 20, 0, 25),
        ("a", 10, 25, 40),
        ("g", 10, 40, 55),
    ]


placed = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 20), st.integers(1, 50), st.sampled_from(WIDTHS)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(placed)
def test_jobs_are_on_one_node_or_on_whole_ones(asked: list[tuple[int, int, int, int]]) -> None:
    """And never leave them."""
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
