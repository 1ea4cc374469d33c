"""The configuration program against what is known and timetables; the registry of bounds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.searches import effort
from support.synthetic import time_us
from support.texts import text_task, us_of
from support.time_indexed import alike

from planner.bounds.configuration import Column, Demand, column, configuration
from planner.bounds.lengths import compute_us, dispatch_us, judged_us, longest_us
from planner.bounds.named import NAMED
from planner.inputs import DeviceGroup
from planner.inputs.limits import Limits
from planner.packing import Curve, PipelineType, Pool
from planner.packing.asked import LengthsTask
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Job, makespan
from planner.timetable.list_schedule import list_schedule, longest_remaining
from plans import timing
from plans.schema import Memory, Op, Program, RoundKind
from plans.timing import duration_us
from profiles.curves import OPS
from profiles.schema import Evaluation, Layer, LayerCost, Task

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


@settings(max_examples=12)
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


@settings(max_examples=12)
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


PAGE = Path(__file__).parents[3] / "docs" / "how-it-plans.md"


def test_a_page_says_what_every_bound_is() -> None:
    """Its table has them in the order in which plans name them."""
    _, _, table = PAGE.read_text().partition("| bound | says |\n|---|---|\n")
    rows, _, _ = table.partition("\n\n")
    assert [row.split(" | ")[0] for row in rows.split("\n")] == [f"| {one.name}" for one in NAMED]


FORMULA = (2_000_000, 3_000_000, 0)
LENGTHS = np.array([100, 2000, 300, 700, 50], np.uint32)


def asked(task: Task, done: int = 0) -> LengthsTask:
    kind = DeviceGroup.of("cpu", synthetic.profile(task, usable_bytes=1 << 30), 2, None)
    return LengthsTask(task, LENGTHS, kind, 1 << 30, done)


def with_times(layer: Layer, times: Callable[[LayerCost], Mapping[str, int]]) -> Layer:
    """The layer with other medians in µs of some ops at each length."""
    costs = [
        structs.replace(cost, **{op: time_us(us) for op, us in times(cost).items()})
        for cost in layer.costs
    ]
    return structs.replace(layer, costs=tuple(costs))


@pytest.mark.parametrize("done", [0, 3])
def test_compute_is_every_sample_of_every_step_by_itself(done: int) -> None:
    """Three times the formula of a forward, on both devices, for samples that begin again."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    samples = [int(LENGTHS[n % 5]) for n in range(3 * done, 3 * done + 12)]
    whole = sum(3 * len(task.layers) * us_of(FORMULA, s, s * s) for s in samples)
    assert 0.99 * whole / 2 <= compute_us(asked(task, done), 2) <= whole / 2


def test_a_forward_that_is_recomputed_may_be_shorter_than_one_alone() -> None:
    """By what each microbatch saves at most, one for every sample."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    held, saved = np.array([1000, 900], np.uint32), 1_000_000
    layer = with_times(
        task.layers[0], lambda one: {"backward": one.backward.median_us + saved // 1000}
    )
    judged = structs.replace(task, layers=(layer,) * 4, evaluation=Evaluation(4, 1))
    whole = 4 * sum(us_of(FORMULA, int(s), int(s) ** 2) - saved / 1000 for s in held)
    assert 0.99 * whole <= judged_us(judged, held, 0) <= whole


def test_parts_that_take_less_than_nothing_leave_no_bound_below_nothing() -> None:
    """On a busy machine a backward may be measured longer than one that also recomputes."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    none = dict.fromkeys(set(OPS) - {"backward"}, 0)
    layers = tuple(with_times(layer, lambda _: none) for layer in task.layers)
    busy = asked(structs.replace(task, layers=layers))
    assert compute_us(busy, 1) == 0
    assert longest_us(busy, [1]) == [0]


def test_steps_are_no_shorter_than_their_longest_samples_one_after_the_other() -> None:
    """On many devices; on few ones their samples shared out evenly, whichever is more in a step."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    steps = [[int(LENGTHS[(3 * n + at) % 5]) for at in range(3)] for n in range(4)]
    for devices, found in zip((1, 2, 8), longest_us(asked(task), (1, 2, 8)), strict=True):
        whole = 0.0
        for own in steps:
            took = [3 * len(task.layers) * us_of(FORMULA, s, s * s) for s in own]
            whole += max(max(took), sum(took) / devices)
        assert 0.99 * whole <= found <= whole


def test_dispatch_is_the_best_division_of_sequences() -> None:
    """Two equal pipelines share all; where only one may take the long ones, it is their sum."""
    task = text_task(lengths=LENGTHS, batch=5, steps=2, formula=FORMULA)
    curve, whole = Curve(0.0, 1000.0), 2 * 1000 * int(LENGTHS.sum())
    equal = Pool((PipelineType(curve, 1, 2048, 2),))
    assert 0.99 * whole / 2 <= dispatch_us(asked(task), [equal]) <= whole / 2
    deep = Pool((PipelineType(curve, 1, 2048), PipelineType(curve, 1, 512)))
    long = 2 * 1000 * 2700
    assert 0.99 * long <= dispatch_us(asked(task), [deep]) <= long
