"""One search for all tasks of a shape."""

import time
from dataclasses import replace

import pytest
from msgspec import structs
from support import gangs, synthetic
from support.searches import SHORT, effort

from planner.bounds.task import task_bounds
from planner.builder import build
from planner.errors import Infeasible, NoPlanFound
from planner.inputs.problem import DeviceGroup, Effort, Problem
from planner.lowering.round import DeviceRound
from planner.search import variants
from planner.search.searches import Searches
from planner.search.shapes import renamed
from planner.search.task import Candidate, Search, Wide
from planner.search.variants import Found
from planner.shards.costs import TaskCosts
from planner.shards.shard_cost import Links
from planner.shards.values import PLENTY
from profiles.codec import pretty
from profiles.schema import Task


def asked(*names: str, budget: int = 6 << 20, batch: int = 2) -> Problem:
    """Tasks of one shape, by other names and of other lengths."""
    task = synthetic.task("t", layers=4, seed=1, batch=batch, param_bytes=1 << 20)
    tasks = [structs.replace(task, name=n, steps=50 + i) for i, n in enumerate(names)]
    return synthetic.problem(*tasks, usable_bytes=budget)


@pytest.mark.parametrize("name", ["other", "0", "t-1"])
def test_a_renamed_program_is_the_one_laid_out_anew(name: str) -> None:
    problem = asked("t", name)
    searches = Searches(problem)
    searches.run(["t"], (), effort(SHORT))
    (first,), (second,) = searches.ways
    strategy = replace(
        first.strategy, costs=TaskCosts(problem.tasks[1], first.strategy.costs.microbatch)
    )
    made = DeviceRound(strategy, Links.of(problem.device), problem.device_bytes)
    assert second.program == made.program()
    assert renamed(second.program, "t") == first.program


def test_a_build_tells_every_search_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of its task on one device of its kind."""
    told, whole = dict[str, int](), variants.best_alone

    def noted(one: tuple[DeviceGroup, Task, int], bound_us: int, own: Effort) -> Found:
        told[one[1].name] = bound_us
        return whole(one, bound_us, own)

    monkeypatch.setattr(variants, "best_alone", noted)
    small, large = (synthetic.task(f"t{n}", layers=n, seed=n) for n in (2, 4))
    problem = synthetic.problem(small, large, usable_bytes=6 << 20)
    build(problem, profile_sha256="0" * 64, limits=SHORT)
    bounds = task_bounds(problem, effort(SHORT))
    assert told == {f"t{n}": one[0, 1].period_us for n, one in zip((2, 4), bounds, strict=True)}


@pytest.mark.parametrize(("bound_us", "searches"), [(0, 2), (1 << 40, 1)])
def test_ties_are_not_searched_apart_where_joined_ones_are_short_enough(
    monkeypatch: pytest.MonkeyPatch, bound_us: int, searches: int
) -> None:
    apart, best = list[bool](), Search.best

    def noted(search: Search, own: Effort) -> Candidate:
        apart.append(search.apart)
        return best(search, own)

    monkeypatch.setattr(Search, "best", noted)
    joined = synthetic.task("t", layers=4, ties=((0, 3),))
    task = structs.replace(joined, tie_bytes=(1 << 18,))
    (kind,) = synthetic.problem(task, usable_bytes=12 << 20).kinds
    found = variants.best_alone((kind, task, PLENTY), bound_us, effort(SHORT))
    assert isinstance(found, Candidate)
    assert apart == [False, True][:searches]


def slow(asked: tuple[DeviceGroup, Task, int], devices: int, effort: Effort) -> Found:
    """A search for programs on several devices that ends when time is up."""
    time.sleep(max(0.0, effort.left))
    return gangs.pipelines(asked, devices, replace(effort, deadline=time.monotonic() + 60))


def nothing(asked: tuple[DeviceGroup, Task, int], devices: int, effort: Effort) -> Found:
    """A search for programs on several devices that time is up for, or that finds none on two."""
    if devices == 2:
        raise Infeasible("no layout")
    if devices == 3:
        raise NoPlanFound("no time")
    return gangs.pipelines(asked, devices, effort)


def test_shapes_are_searched_for_several_devices_once() -> None:
    """For all tasks of a shape if any is asked for; what is not found leaves a task as it was."""
    problem = asked("t", "u", budget=24 << 20, batch=16)
    problem = problem.alike(count=4)
    wide = [Wide("u", 0, devices) for devices in (2, 3, 4)]
    searches = Searches(problem, nothing)
    searches.run(["t"], wide, effort(SHORT))
    first, second = searches.ways
    assert [one.program.devices for one in first] == [1, 4]
    assert second[1].program == renamed(first[1].program, "u")
    known = [searches.known(one) for one in (Wide("t", 0, 1), *wide)]
    assert known == [True, True, False, True]  # the one that time ended may be run again


def test_a_search_that_time_ended_is_not_complete() -> None:
    """Also one whose result is not used, and one that ends too late with something."""
    problem = asked("t", budget=24 << 20, batch=16).alike(count=4)
    for devices, late in ((2, False), (3, True), (4, False)):
        searches = Searches(problem, nothing)
        searches.run(["t"], [Wide("t", 0, devices)], effort(SHORT))
        assert searches.complete != late
    searches = Searches(problem, slow)
    searches.run(["t"], (), effort(SHORT))
    searches.run((), [Wide("t", 0, 4)], replace(effort(SHORT), deadline=time.monotonic() + 0.2))
    assert [one.complete for one in searches.ways[0]] == [True, False]
    assert not searches.complete


def test_two_processes_find_the_same_plan() -> None:
    tasks = [synthetic.task(f"t{i}", layers=3 + i, seed=i) for i in range(2)]
    problem = synthetic.problem(*tasks, usable_bytes=10 << 20, devices=2)
    one, two = (build(problem, profile_sha256="0" * 64, jobs=jobs, limits=SHORT) for jobs in (1, 2))
    assert pretty(structs.replace(one, provenance={})) == pretty(
        structs.replace(two, provenance={})
    )
