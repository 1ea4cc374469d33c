"""What a prefetch that makes parameters from masters takes, and what follows from it in a plan."""

from dataclasses import replace

from msgspec import structs
from support import synthetic

from planner.bounds.task import task_bound
from planner.inputs.limits import Limits
from planner.inputs.problem import Effort
from planner.search.task import Search
from planner.shards.costs import TaskCosts, castable
from planner.shards.shard_cost import Links
from profiles.schema import Layer, Link, Rate, Task

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
    few = Limits(search_ops=1_000, search_divisions=2, search_guides=1, bound_divisions=2)
    effort, on = Effort(1e12, 0, few), links(10**9)
    bound = task_bound(task, effort, on, 12 * MB).period_us
    for cast in (False, True):
        found = Search(task, on, 12 * MB, cast=cast).best(effort)
        assert found.program.period_us >= bound
        assert {shard.cast for shard in found.strategy.shards} == {cast}
