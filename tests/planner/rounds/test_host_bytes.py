"""Host memory as a constraint: with less of it plans get slower, not impossible."""

import time
from dataclasses import replace
from functools import cache

import pytest
from support import synthetic

from planner import Infeasible, Problem, build
from planner.estimate.profile import Spec, estimate
from planner.inputs.limits import default
from planner.inputs.problem import Effort
from planner.search.task import Search
from planner.shards.costs import TaskCosts
from planner.shards.shard_cost import Links
from planner.views.show import describe
from planner.views.summary import host_bytes
from plans.schema import Plan
from profiles.codec import ALIGNMENT
from profiles.schema import Profile, Task

HASH = "0" * 64
GIB = 1 << 30


def heavy(name: str = "a", layers: int = 4, steps: int = 10) -> Task:
    """A chain whose boundaries are as large as its parameters."""
    sizes = {"param_bytes": 1 << 18, "boundary_bytes": 1 << 18}
    return synthetic.task(name, layers=layers, steps=steps, batch=4, forward_us=1_000, **sizes)


def asked(*tasks: Task, host: int, room: int = 1 << 30, devices: int = 1) -> Problem:
    """These tasks on devices of so many bytes, with so many on the host."""
    profile = synthetic.profile(*tasks, usable_bytes=room, bytes_per_s=10**9)
    return Problem.of(profile, devices=devices, device_bytes=None, host_bytes=host)


def kept(task: Task) -> int:
    """Bytes of its parameters and state."""
    costs = TaskCosts(task, 1)
    return sum(costs.shard(n, n + 1).kept_bytes for n in range(len(task.layers)))


ROOMS = (30, 40, 60, 90, 200)  # of devices, in units of 64 KiB
HOSTS = (0, 1 << 18, 1 << 20, 3 << 20, 1 << 24)  # beside what is kept


def us(room: int, host: int) -> float:
    """The period in memory of so many bytes, for ever where there is no plan."""
    task = heavy(layers=3)
    problem = asked(task, host=0, room=room << 16)
    search = Search(
        task, Links.of(problem.device), problem.device_bytes, host_bytes=kept(task) + host
    )
    try:
        limits = replace(default(), search_ops=2_000)
        return search.best(Effort(time.monotonic() + 60, 0, limits)).program.period_us
    except Infeasible:
        return float("inf")


def test_more_memory_on_device_or_host_is_never_slower(quick: None) -> None:
    """Over a grid of budgets, from what holds parameters and state alone to more than enough."""
    grid = [[us(room, host) for host in HOSTS] for room in ROOMS]
    for times in (*grid, *zip(*grid, strict=True)):
        assert [*times] == sorted(times, reverse=True)
    assert len({us for times in grid for us in times}) > len(ROOMS)


@cache
def made(host: int) -> Plan:
    """The plan for a small device, and a host with so much beside what is kept there."""
    return build(asked(heavy(), host=kept(heavy()) + host, room=60 << 16), profile_sha256=HASH)


def test_less_host_memory_is_slower_not_impossible(quick: None) -> None:
    """Where nothing but parameters and state fits the host, the device does all by itself."""
    little, much = made(0), made(1 << 24)
    assert little.prediction.makespan_us > much.prediction.makespan_us
    assert little.host.bytes == kept(heavy()) < much.host.bytes
    assert {*host_bytes(little)} == {"parameters", "optimizer state"}


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_smallest_host_memory_named_is_the_smallest(tasks: int, quick: None) -> None:
    """With it there is a plan, with a little less there is none; what there is is named too."""
    every = [heavy(name, layers=3, steps=3) for name in "ab"[:tasks]]
    told = r"host store .*\(1 bytes\).*--host-memory that would do"
    with pytest.raises(Infeasible, match=told) as caught:
        build(asked(*every, host=1, room=60 << 16), profile_sha256=HASH)
    assert caught.value.resource == "host"
    smallest = caught.value.smallest
    plan = build(asked(*every, host=smallest, room=60 << 16), profile_sha256=HASH)
    assert plan.host.bytes <= smallest
    with pytest.raises(Infeasible):
        build(asked(*every, host=smallest - ALIGNMENT, room=60 << 16), profile_sha256=HASH)


def test_tasks_that_take_turns_wait_in_the_same_bytes(quick: None) -> None:
    """Three tasks on one device, on a host with room for what one of them puts aside."""
    every = [heavy(name, steps=3) for name in "abc"]
    alone = build(asked(every[0], host=1 << 40, room=60 << 16), profile_sha256=HASH)
    aside = alone.host.bytes - kept(every[0])
    assert aside
    problem = asked(*every, host=sum(map(kept, every)) + aside, room=60 << 16)
    plan = build(problem, profile_sha256=HASH)
    assert plan.prediction.makespan_us <= 3.01 * alone.prediction.makespan_us
    assert plan.host.bytes <= problem.host_bytes


def test_tasks_that_train_together_divide_what_the_host_has(quick: None) -> None:
    """Two tasks on two devices, on a host with room for what one of them would like to put aside:
    both have a plan, and their programs share no bytes, or the checker would say so."""
    every = [heavy(name, steps=3) for name in "ab"]
    alone = build(asked(every[0], host=1 << 40, room=60 << 16), profile_sha256=HASH)
    aside = alone.host.bytes - kept(every[0])
    problem = asked(*every, host=sum(map(kept, every)) + aside, room=60 << 16, devices=2)
    plan = build(problem, profile_sha256=HASH)
    assert plan.host.bytes <= problem.host_bytes
    assert plan.prediction.makespan_us >= alone.prediction.makespan_us


@cache
def seven_billion() -> Profile:
    """Llama-7B on an RTX 4090, in one microbatch size only."""
    return estimate(Spec("llama-7b", "4090", 16, 1024, (8,), steps=1))


def seven(host: int) -> Plan:
    problem = Problem.of(seven_billion(), devices=1, device_bytes=None, host_bytes=host)
    return build(problem, profile_sha256=HASH)


@pytest.mark.parametrize("gib", [80, 128])
def test_seven_billion_parameters_plan_on_a_small_host(gib: int, quick: None) -> None:
    """24 GiB of device memory, and a host that holds the state but not all gradients and
    activations beside it."""
    plan = seven(gib * GIB)
    assert plan.host.bytes <= gib * GIB
    assert sum(buffer.bytes for buffer in plan.host.buffers) > gib * GIB


def test_the_least_host_for_seven_billion_parameters_is_little_more_than_their_state() -> None:
    """75.3 GiB of masters and moments; not 88 with bf16 parameters, or 100 with all gradients."""
    with pytest.raises(Infeasible) as caught:
        seven(GIB)
    assert 75 * GIB < caught.value.smallest <= 80 * GIB


def test_the_host_store_is_told_by_kind(quick: None) -> None:
    """The bytes of every kind; what changes hands counts in each."""
    plan = made(1 << 24)
    told = host_bytes(plan)
    (task,) = plan.tasks
    assert told["parameters"] == sum(shard.param_bytes for shard in task.shards)
    assert told["optimizer state"] == sum(shard.state_bytes for shard in task.shards)
    assert sum(told.values()) == plan.host.bytes
    line = next(x for x in describe(plan).splitlines() if x.startswith("  the host store holds "))
    assert all(kind in line for kind in told)
    less = host_bytes(made(1 << 20))
    assert sum(less.values()) > sum(less[kind] for kind in ("parameters", "optimizer state"))
