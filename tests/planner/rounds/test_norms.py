"""Plans of tasks whose updates wait for the norms of all gradients."""

import time
from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs
from support import synthetic
from support.searches import SHORT

from planner import Infeasible, Problem, build
from planner.bounds.task import task_bound
from planner.estimate.profile import Spec, estimate
from planner.inputs.limits import default
from planner.inputs.problem import Effort
from planner.search.task import Search
from planner.shards.costs import TaskCosts, castable
from planner.shards.shard_cost import Links
from planner.views.show import describe
from planner.views.summary import host_bytes
from plans.schema import Op, Plan
from profiles.codec import ALIGNMENT
from profiles.schema import Layer, Link, Numerics, Profile, Rate, Task

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64
CASES = ((3, 1), (6, 50), (8, 1), (100, 50))  # MiB of the device, slowness of the host


def profile(*, norms: bool = True, states: int = 2, host_slowness: int = 1) -> Profile:
    """Five layers of a MiB or so."""
    task = synthetic.task(
        "t", layers=5, steps=50, norms=norms, states=states, host_slowness=host_slowness
    )
    return synthetic.profile(task, usable_bytes=1 << 30)


def built(of: Profile, mib: int, policy: str = "gantry") -> Plan:
    asked = Problem.of(of, devices=1, device_bytes=mib << 20, host_bytes=None)
    return build(asked, profile_sha256=HASH, policy=policy)  # type: ignore[arg-type]


def kinds(plan: Plan, stream: str) -> str:
    """The kinds of a stream's ops in a round, in order."""
    ops = [op for op in plan.programs[0].round if op.stream == stream]
    return "".join(op.name.kind for op in ops)


def ops(plan: Plan, kind: str) -> list[Op]:
    return [op for op in plan.programs[0].round if op.name.kind == kind]


@pytest.mark.parametrize(("mib", "slowness"), CASES)
def test_every_update_follows_every_note(mib: int, slowness: int) -> None:
    """From devices that just fit a few shards to one that holds all: each shard's N once, right
    behind its last backward, and no update before the last of them."""
    plan = built(profile(host_slowness=slowness), mib)
    assert {op.id.split(".")[1] for op in ops(plan, "N")} == {
        f"s{k}" for k in range(len(plan.tasks[0].shards))
    }
    compute = kinds(plan, "0.compute")
    assert "U" not in compute[: compute.rindex("N")]
    noted = max(op.end_us for op in ops(plan, "N"))
    assert all(op.start_us >= noted for op in ops(plan, "U"))
    assert all("norm" in op.reads for op in ops(plan, "U"))


@pytest.mark.parametrize("states", [0, 2])
def test_the_baseline_waits_for_norms_too(states: int) -> None:
    """Its gradients wait on the host, and one more sweep updates."""
    plan = built(profile(states=states), 12, "hydra")
    compute = kinds(plan, "0.compute")
    assert compute.endswith("U" * len(plan.tasks[0].shards))
    assert compute.count("N") == compute.count("U")


def test_norms_that_nobody_reads_on_the_host_stay_on_the_device() -> None:
    plan = built(profile(host_slowness=50), 100)
    assert [op.id for op in plan.programs[0].round if ".norm." in op.id] == []
    assert not any(buffer.name == "t.norm" for buffer in plan.host.buffers)
    others = built(profile(), 6).host.buffers
    assert [buffer.name for buffer in others if buffer.name.endswith("norm")] == ["t.norm"]


def test_a_plan_says_how_its_tasks_compute() -> None:
    """Precision, norms and the switches of the process come from the profile."""
    of = profile()
    task = structs.replace(of.tasks[0], precision="fp16-autocast")
    machine = structs.replace(of.machine, numerics=Numerics(tf32=True))
    plan = built(structs.replace(of, machine=machine, tasks=(task,)), 100)
    assert plan.numerics == Numerics(tf32=True)
    assert plan.tasks[0].precision == "fp16-autocast"
    assert plan.tasks[0].norm_bytes == task.norm_bytes > 0


def buffered(kind: str) -> Profile:
    """Two tasks with module buffers of a MiB each, on a device of this kind."""
    made = []
    for name in "ab":
        task = synthetic.task(name, layers=4, steps=9)
        first = structs.replace(task.layers[0], buffer_bytes=1 << 20)
        made.append(structs.replace(task, layers=(first, *task.layers[1:])))
    of = synthetic.profile(*made, usable_bytes=1 << 26)
    device = structs.replace(of.machine.devices[0], kind=kind, emulation=None)
    return structs.replace(of, machine=structs.replace(of.machine, devices=(device,)))


def test_a_cuda_device_holds_the_buffers_of_all_tasks() -> None:
    """Its budget is what they leave; elsewhere they are in the reserve of the task at work."""
    budgets = {kind: built(buffered(kind), 12).devices[0].budget_bytes for kind in ("cpu", "cuda")}
    assert budgets == {"cpu": 12 << 20, "cuda": 10 << 20}


def test_budgets_in_messages_are_those_of_the_command() -> None:
    """With the module buffers that a CUDA device holds beside."""
    with pytest.raises(Infeasible, match=r"the device offers 3\.0 MiB") as caught:
        built(buffered("cuda"), 3)
    asked = Problem.of(
        buffered("cuda"), devices=1, device_bytes=caught.value.smallest, host_bytes=None
    )
    assert build(asked, profile_sha256=HASH)


MB = 1 << 20


def low(task: Task) -> Task:
    """The task in bf16, its state three times the fp32 of its parameters."""

    def layer(one: Layer) -> Layer:
        return structs.replace(one, state_bytes=6 * one.param_bytes)

    return structs.replace(task, precision="bf16", layers=tuple(map(layer, task.layers)))


def links(cast_per_s: int, latency_us: int = 0) -> Links:
    (device,) = synthetic.machine(usable_bytes=MB, latency_us=5).devices
    rate = Rate(cast_per_s, latency_us)
    more = (*device.links, Link("cast", rate, rate))
    return Links.of(structs.replace(device, links=more))


def test_a_cast_prefetch_lasts_as_long_as_the_slower_half() -> None:
    """Piece by piece: the longer of cast and copy, and once the latency of the other."""
    assert links(4 * 10**9, 100).cast_us(10**6) == 1000 + 5 + 100
    assert links(10**8, 100).cast_us(10**6) == 10_000 + 5 + 100
    assert links(10**9).prefetch_us(10**6) == 1005


def test_only_shards_whose_parameters_all_have_masters_cast() -> None:
    """Not one with frozen layers, nor in another precision, nor without a known rate."""
    task = low(synthetic.task("a", layers=4, seed=1))
    first = structs.replace(task.layers[0], grad_bytes=0, state_bytes=0)
    mixed = structs.replace(task, layers=(first, *task.layers[1:]))
    costs = TaskCosts(mixed, 4, cast=True)
    assert [costs.shard(a, b).cast for a, b in ((0, 1), (0, 2), (1, 2))] == [False, False, True]
    assert castable(mixed, links(10**9))
    assert not castable(mixed, replace(links(10**9), cast=None, cast_both=None))
    assert not castable(structs.replace(task, precision="fp32"), links(10**9))
    assert not TaskCosts(task, 4).shard(1, 2).cast


def test_the_bound_holds_for_plans_that_cast() -> None:
    """With casts as fast as copies a task may beat what it takes with parameters on the host, but
    not its bound."""
    task = low(synthetic.task("a", layers=6, seed=2, host_slowness=50, forward_us=100))
    effort, on = Effort(1e12, 0, SHORT), links(10**9)
    bound = task_bound(task, effort, on, 12 * MB).period_us
    for cast in (False, True):
        found = Search(task, on, 12 * MB, cast=cast).best(effort)
        assert found.program.period_us >= bound
        assert {shard.cast for shard in found.strategy.shards} == {cast}


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


ROOMS = (30, 60, 200)  # of devices, in units of 64 KiB
HOSTS = (0, 1 << 20, 1 << 24)  # beside what is kept


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


@cache
def seven_billion() -> Profile:
    """Llama-7B on an RTX 4090, in one microbatch size only."""
    return estimate(Spec("llama-7b", "4090", 16, 1024, (8,), steps=1))


def seven(host: int) -> Plan:
    problem = Problem.of(seven_billion(), devices=1, device_bytes=None, host_bytes=host)
    return build(problem, profile_sha256=HASH)


def test_seven_billion_parameters_plan_on_a_small_host(quick: None) -> None:
    """24 GiB of device memory, and a host that holds the state but not all gradients and
    activations beside it."""
    plan = seven(80 * GIB)
    assert plan.host.bytes <= 80 * GIB
    assert sum(buffer.bytes for buffer in plan.host.buffers) > 80 * GIB


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
