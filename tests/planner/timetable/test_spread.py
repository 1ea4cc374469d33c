"""Works shared out to devices of several kinds, against bounds that no timetable can beat."""

import time
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from support.unrelated import scaled

from planner.inputs.problem import Effort
from planner.timetable.configuration import Column, Demand, configuration
from planner.timetable.placement import place
from planner.timetable.spread import open_shop
from planner.timetable.works import Run, Work, makespan

FOUR = (  # rounds, and µs of each on a V100 and on a K80
    (400, 8_493_481, 33_562_571),
    (700, 9_387_608, 34_025_877),
    (900, 3_436_129, 15_135_860),
    (500, 2_203_535, 9_736_915),
)


def ratio(works: list[Work], devices: tuple[int, ...]) -> float:
    """The makespan over the bound of all schedules of the works."""
    effort = Effort(time.monotonic() + 60, 0)
    columns = [
        Column(work.name, str(kind), work.whole_us(kind))
        for work in works
        for kind in set(devices)
        if work.runs[kind]
    ]
    demand = Demand({str(kind): count for kind, count in Counter(devices).items()})
    floor = configuration(demand, columns, effort).us
    return makespan(place(works, devices, floor, effort)) / floor


def test_tasks_that_all_need_the_fast_device_take_turns_on_it() -> None:
    """Four tasks on a V100 and three K80s: each of three has to be on one of them all the time, so
    that they change places in the right moments or end 9 % later."""
    works = [
        Work(f"t{n}", rounds, (Run(10**6, fast), Run(10**6, slow)))
        for n, (rounds, fast, slow) in enumerate(FOUR)
    ]
    assert ratio(works, (0, 1, 1, 1)) <= 1.002


def test_mixed_devices_are_used_to_the_end() -> None:
    """Works of hours on devices of two or three kinds, within 1 % of the bound of their programs:
    few works, that may wait for each other, and many, that are packed."""
    for seed, (count, devices) in enumerate(
        [(5, (0, 1, 1, 1)), (6, (0, 0, 1, 1, 2)), (12, (0, 0, 1, 1, 1)), (24, (0,) * 4 + (1,) * 8)]
    ):
        assert ratio(scaled(count, max(devices) + 1, seed=seed), devices) <= 1.01


some_us = st.integers(0, 50) | st.just(0)


@settings(max_examples=60)
@given(
    st.lists(st.fixed_dictionaries({0: some_us, 1: some_us}), min_size=1, max_size=6),
    st.sampled_from([(0, 1), (0, 1, 1, 1), (0, 0, 1)]),
)
def test_an_open_shop_ends_when_the_longest_job_or_the_busiest_kind_does(
    jobs: list[dict[int, int]], devices: tuple[int, ...]
) -> None:
    """No end is sooner. Slices of a device, and of a job, follow each other; a rounded µs for each
    slice may be lost."""
    free, ready = Counter[int](), Counter[int]()
    done = [Counter[int]() for _ in jobs]
    slices = open_shop(jobs, devices)
    for one in slices:
        end = max(free[one.device], ready[one.job]) + one.us
        free[one.device] = ready[one.job] = end
        done[one.job][devices[one.device]] += one.us
    assert [+job for job in done] == [+Counter(job) for job in jobs]
    loads = [sum(job[kind] for job in jobs) / devices.count(kind) for kind in set(devices)]
    least = max(*loads, *(sum(job.values()) for job in jobs))
    assert max(free.values(), default=0) <= least + len(slices)
