"""The configuration program against what is known and timetables; the registry of bounds."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.searches import effort
from support.time_indexed import alike

from planner.bounds.configuration import Column, Demand, column, configuration
from planner.bounds.named import NAMED
from planner.bounds.task import TaskBound
from planner.inputs.limits import Limits
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Job, makespan
from planner.timetable.list_schedule import list_schedule, longest_remaining
from plans import timing
from plans.schema import Memory, Op, Program, RoundKind
from plans.timing import duration_us

jobs = st.lists(
    st.builds(
        lambda rounds, fixed, period: alike("", rounds, fixed, period),
        st.integers(1, 30),
        st.integers(0, 20),
        st.integers(1, 10**6),
    ),
    min_size=1,
    max_size=6,
).map(lambda ws: [replace(w, name=f"t{i}") for i, w in enumerate(ws)])


BRIEF = Limits(timetable_parts=2_000)  # no search has to come close to the bound


def alone(job: Job, devices: int = 1) -> Column:
    """All steps of a task on this many devices."""
    return Column(job.name, "cpu", job.us(0, job.rounds), devices)


def least_us(asked: list[Job], devices: int, *columns: Column) -> int:
    """The bound for these jobs, each alone, and these columns besides."""
    return configuration(Demand({"cpu": devices}), [*map(alone, asked), *columns], effort()).us


@given(jobs, st.integers(1, 8))
def test_single_devices_end_with_the_longest_task_or_the_even_share(
    asked: list[Job], devices: int
) -> None:
    """With gangs of one device the optimum is known, and the bound is exact."""
    whole = [job.us(0, job.rounds) for job in asked]
    assert least_us(asked, devices) == max(*whole, -(-sum(whole) // devices))


@given(jobs, st.integers(1, 3))
def test_no_timetable_is_below_the_bound(asked: list[Job], devices: int) -> None:
    """Neither the planner's nor a greedy one, whatever it costs to enter and leave."""
    bound = least_us(asked, devices)
    assert makespan(assign_jobs(asked, (0,) * devices, bound, effort(BRIEF))) >= bound
    for made in (
        longest_remaining(asked, (0,) * devices),
        list_schedule(asked, range(len(asked)), (0,) * devices),
    ):
        assert makespan(made) >= bound


def test_several_devices_train_a_task_while_it_pays() -> None:
    """On two devices a task takes 600 µs instead of 1,000. On two devices two such tasks do best
    alone, on three each runs wide for five eighths of its steps."""
    asked = [alike(name, 10, 0, 100) for name in "ab"]
    wide = [Column(name, "cpu", 600, 2) for name in "ab"]
    assert least_us(asked[:1], 2, wide[0]) == 600
    assert least_us(asked, 2, *wide) == 1000
    assert least_us(asked, 3, *wide) == 750


def shortest_mix(tasks: int, devices: int, units: dict[tuple[int, int], int]) -> float:
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
def test_tasks_on_several_devices_end_as_soon_as_any_mix(
    times: list[tuple[int, int]], devices: int
) -> None:
    """Against all mixes in tenths: never later, and sooner by what tenths are too coarse for."""
    units = {(t, k + 1): us * 1_000 for t, own in enumerate(times) for k, us in enumerate(own)}
    columns = [Column(str(t), "cpu", us, k) for (t, k), us in units.items()]
    best = shortest_mix(len(times), devices, units)
    least = configuration(Demand({"cpu": devices}), columns, effort()).us
    assert 0.85 * best <= least <= best + 1


def test_two_kinds_of_devices_share_the_work() -> None:
    """A task that takes twice as long on the other kind: a third of its steps go there."""
    quick = [Column(task, "cuda", 600) for task in "tu"]
    slow = [Column(task, "cpu", 1200) for task in "tu"]
    made = configuration(Demand({"cuda": 1, "cpu": 1}), [*quick, *slow], effort())
    assert made.us == 800
    assert sum(made.parts[2:]) == pytest.approx(2 / 3)


def test_a_task_that_begins_late_ends_late() -> None:
    """Its earliest start and its own time."""
    asked = [alike("a", 10, 0, 10), alike("b", 10, 0, 1)]
    demand = Demand({"cpu": 2}, {"b": 500})
    assert configuration(demand, list(map(alone, asked)), effort()).us == 510


@given(
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_a_column_of_kinds_is_the_shortest_way_to_cut_them(
    times: list[int], turns: list[tuple[int, int]]
) -> None:
    """Wherever the rounds of several kinds are cut into segments."""
    enter, leave, *own = times
    op = Op("a.s0.B0", "0.compute", 0, 1)
    more = (RoundKind((256,), own[2], own[3], (op,)),)
    program = Program("a", (Memory(1, 1),), ("a",), enter, own[0], own[1], leave, (), (), (op,), ())
    program, whole = structs.replace(program, kinds=more), timing.joined(turns)
    steps = sum(rounds for _, rounds in whole)

    def us(ends: list[int]) -> int:
        pairs = list(pairwise([0, *ends, steps]))
        return sum(duration_us(program, b - a, timing.part(whole, a, b - a)) for a, b in pairs)

    cuts = [[n for n in range(1, steps) if mask >> n & 1] for mask in range(0, 1 << steps, 2)]
    assert column(program, "cpu", steps, whole).us == min(map(us, cuts))


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(1, 40))
def test_a_column_is_never_longer_than_segments_of_its_program(
    times: list[int], steps: int
) -> None:
    """Any number of segments of so many rounds takes its part of the column or longer."""
    enter, period, span, leave = times
    op = Op("a.s0.B0", "0.compute", 0, 1)
    program = Program("a", (Memory(1, 1),), ("a",), enter, period, span, leave, (), (), (op,), ())
    made = column(program, "cpu", steps)
    for rounds, segments in product(range(1, steps + 1), (1, 2, 3)):
        if rounds < segments:
            continue
        parts = [rounds // segments + (n < rounds % segments) for n in range(segments)]
        us = sum(duration_us(program, part) for part in parts)
        assert us * steps >= rounds * made.us


README = Path(__file__).parents[3] / "planner" / "README.md"


def test_the_readme_says_what_every_bound_is() -> None:
    """Its table has them in the order in which plans name them."""
    _, _, table = README.read_text().partition("| bound | says |\n|---|---|\n")
    rows, _, _ = table.partition("\n\n")
    assert [row.split(" | ")[0] for row in rows.split("\n")] == [f"| {one.name}" for one in NAMED]


def test_a_weaker_bound_stands_for_one_that_is_not_known() -> None:
    """By phases no more is known on several devices than fill and drain, with lengths than the
    longest samples."""
    several = TaskBound({"compute": 2, "fill-and-drain": 5})
    assert (several.us("phase"), several.us("longest"), several.period_us) == (5, 2, 5)
    lengths = TaskBound({"compute": 2, "longest": 4})
    assert (lengths.us("fill-and-drain"), lengths.period_us) == (4, 4)
