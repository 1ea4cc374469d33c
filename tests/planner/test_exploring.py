"""On how many devices tasks are wanted, and which searches are run of those that are."""

from dataclasses import replace

import pytest
from msgspec import structs
from support import gangs, synthetic
from support.gangs import of_steps
from support.searches import effort

from planner import Problem
from planner.bounds.task import TaskBound, task_bounds
from planner.exploring import candidate_widths, explore
from planner.inputs.problem import DeviceGroup, Effort, Want
from planner.search.searches import Searches, Ways
from planner.search.variants import Found
from planner.timetable.assign_jobs import timetable
from planner.timetable.choice import choose_programs
from profiles.schema import Task

pytestmark = pytest.mark.usefixtures("quick")


def longest_first(devices: int, steps: list[int], **wishes: object) -> list[tuple[str, int]]:
    """The tasks that are wanted on several devices, and on how many, where a step takes 1 ms."""
    asked = replace(of_steps(devices, steps), **wishes)  # type: ignore[arg-type]
    bounds = [{(0, 1): TaskBound({"compute": 1_000})} for _ in steps]
    return [(one.task, one.devices) for one in candidate_widths(asked, bounds, effort())]


def test_only_tasks_that_hold_up_the_rest_are_wanted_on_several_devices() -> None:
    """One of four, as long as the others together; a second device would do, and none where all
    share out evenly already."""
    assert longest_first(2, [90, 30, 30, 30]) == []
    assert longest_first(4, [900, 100, 100, 100]) == [("t0", 2), ("t0", 3), ("t0", 4)]
    assert longest_first(8, [900]) == [("t0", 3), ("t0", 4), ("t0", 8)]
    assert longest_first(8, [100] * 8) == []
    assert longest_first(2, [120, 90]) == [("t0", 2), ("t1", 2)]  # one after the other on both


def test_every_task_is_wanted_where_other_ends_count_than_the_last() -> None:
    """All for the mean completion; those with a deadline."""
    every = [("t0", 2), ("t0", 3), ("t1", 2), ("t1", 3)]
    assert longest_first(3, [5, 5, 5], objective="completion")[:4] == every
    due = {"t1": Want(deadline_us=10)}
    assert longest_first(3, [5, 5, 5], wants=due) == [("t1", 2), ("t1", 3)]


def test_a_task_that_waits_for_copies_is_wanted_on_several_devices() -> None:
    """Its step takes far longer than it computes, which more memory may spare."""
    bounds = [{(0, 1): TaskBound({"compute": 9, "phase": us})} for us in (10**6, 9)]
    names = {one.task for one in candidate_widths(of_steps(2, [100, 10]), bounds, effort())}
    assert names == {"t0"}


class Counted:
    """A stand-in for the search on several devices that notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def __call__(self, asked: tuple[DeviceGroup, Task, int], devices: int, effort: Effort) -> Found:
        self.asked.append((asked[1].name, devices))
        return gangs.pipelines(asked, devices, effort)


def uneven(long: int, devices: int = 3) -> Problem:
    """A task of so many steps beside three of 100, each of a shape of its own."""
    each = [
        structs.replace(synthetic.task(f"t{n}", layers=3 + n, seed=n, batch=16), steps=steps)
        for n, steps in enumerate([long, 100, 100, 100])
    ]
    return synthetic.problem(*each, usable_bytes=24 << 20, devices=devices)


def end_us(problem: Problem, ways: Ways) -> int:
    """The end of the timetable of the strategies that are taken."""
    chosen = choose_programs(problem, ways, effort())
    segments = timetable(problem, chosen, 0, "gantry", effort())
    return max(segment.end_us for segment in segments)


@pytest.mark.parametrize("long", [300, 3_000])
def test_fewer_searches_end_about_as_soon_as_all_that_are_wanted(long: int) -> None:
    """Against every search that is wanted; a task that does better on several devices is not
    searched alone. There are more tasks than devices, else all that are long are wanted."""
    asked = uneven(long)
    bounds = task_bounds(asked, effort())
    few, every = Counted(), Counted()
    some, all_ = Searches(asked, few), Searches(asked, every)
    explore(asked, some, bounds, effort())
    all_.run([t.name for t in asked.tasks], candidate_widths(asked, bounds, effort()), effort())
    now, best = (end_us(asked, one.ways) for one in (some, all_))
    assert now * (effort().limits.wide_near - 1) <= best * effort().limits.wide_near
    assert len(few.asked) < len(every.asked)
    assert sum(map(len, some.ways)) < sum(map(len, all_.ways)) - 1
