"""List schedules: literal ones, whole and sound ones for any costs, and brute force below them."""

import random
from collections import Counter
from itertools import product

import pytest
from support.order_check import check, spans

from planner.orders import zero_bubble
from planner.orders.list_schedule import FAR, Rule, list_makespan, ranked_schedule
from planner.orders.passes import Cost, Order, Pass, Pipeline
from planner.orders.tables import Tables, ranking_of

UNIT, PLACES = Cost(1, 1, 1, 2, 1), ((0,), (1,))


def text(order: Order) -> list[str]:
    return [" ".join(f"{kind}{s}.{m}" for kind, s, m in line) for line in order]


def random_case(seed: int, shards: int = 3, microbatches: int = 3) -> tuple[Pipeline, tuple]:
    """A small pipeline, and rows in which shards may have several devices."""
    rng = random.Random(seed)
    devices = rng.randint(1, 3)
    fused = rng.random() < 0.3
    costs = []
    for s in range(shards):
        held = rng.randint(1, 3)
        costs.append(
            Cost(
                0 if fused and s == shards - 1 else rng.randint(1, 4),
                rng.randint(1, 4),
                rng.randint(0, 4),
                held,
                rng.randint(0, held),
            )
        )
    kinds = [
        tuple(c._replace(input=c.input + rng.randint(0, 1), hop=rng.randint(0, 2)) for c in costs)
        for _ in range(devices)
    ]
    rows = tuple(
        tuple(rng.randrange(devices) for _ in range(microbatches))
        if rng.random() < 0.5
        else (rng.randrange(devices),) * microbatches
        for _ in range(shards)
    )
    needed = max(
        sum(costs[s].held for s, row in enumerate(rows) if row[m] == device)
        for device in range(devices)
        for m in range(microbatches)
    )
    limits = tuple(needed + rng.randint(0, 3) for _ in range(devices))
    return Pipeline(tuple(kinds), microbatches, limits), rows


def inputs(pipeline: Pipeline, item: Pass) -> list[Pass]:
    """What a pass may read, of which one is in the order."""
    kind, s, m = item
    if kind == "W":
        return [Pass("I", s, m)]
    if kind == "F":
        return [Pass("F", s - 1, m)] if s else []
    if s + 1 < pipeline.shards:
        return [Pass("B", s + 1, m), Pass("I", s + 1, m)]
    fused = not any(costs[s].forward for costs in pipeline.costs)
    return ([Pass("F", s - 1, m)] if s else []) if fused else [Pass("F", s, m)]


def end_of(pipeline: Pipeline, done: dict[Pass, tuple[int, int]], item: Pass, device: int) -> int:
    """When the input of a pass is on its device; -1 while it has not been computed."""
    wanted = inputs(pipeline, item)
    if not wanted:
        return 0
    for source in wanted:
        if source in done:
            end, other = done[source]
            if other == device:
                return end
            deeper, there = max((item.shard, device), (source.shard, other))
            return end + pipeline.costs[there][deeper].hop
    return -1


def makespan(pipeline: Pipeline, order: Order) -> int:
    """The order timed by going round until nothing is left; it must be complete and sound."""
    done: dict[Pass, tuple[int, int]] = {}
    lines, free = [list(line) for line in order], [0] * len(order)
    while any(lines):
        moved = False
        for device, line in enumerate(lines):
            if line and (at := end_of(pipeline, done, line[0], device)) >= 0:
                item = line.pop(0)
                free[device] = max(at, free[device]) + pipeline.costs[device][item.shard].of(
                    item.kind
                )
                done[item] = free[device], device
                moved = True
        assert moved, "deadlock"
    return max(free)


def changes(pipeline: Pipeline, device: int, item: Pass) -> tuple[int, int]:
    """What a pass takes when it begins and gives when it ends."""
    cost = pipeline.costs[device][item.shard]
    if item.kind == "F":
        return cost.held, 0
    opens = not any(costs[item.shard].forward for costs in pipeline.costs) and item.kind != "W"
    gives = {"B": cost.held, "I": cost.held - cost.left, "W": cost.left}[item.kind]
    return cost.held * opens, gives


def within(pipeline: Pipeline, device: int, line: list[Pass]) -> bool:
    """A device's passes keep its memory, and gradients are added by ascending microbatch."""
    held, newest = 0, dict[int, int]()
    for item in line:
        take, give = changes(pipeline, device, item)
        held += take
        if pipeline.limits and held > pipeline.limits[device]:
            return False
        held -= give
        if item.kind in "BW":
            if newest.get(item.shard, -1) > item.microbatch:
                return False
            newest[item.shard] = item.microbatch
    return True


def test_backwards_come_first() -> None:
    """Two shards on two devices make 1F1B on the second, while the first runs ahead."""
    pipeline = Pipeline.alike([Cost(1, 1, 1), Cost(1, 1, 1)], 2, 3)
    end, order = ranked_schedule(pipeline, ((0, 0, 0), (1, 1, 1)))
    assert end == 12
    assert text(order) == ["F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"]


@pytest.mark.parametrize("seed", range(20))
def test_schedules_of_any_rule_are_whole_and_sound(seed: int) -> None:
    """The same with depths and waits: nothing waits for ever, nor beyond the depth."""
    pipeline, rows = random_case(seed, shards=5, microbatches=4)
    rng = random.Random(seed)
    depth = tuple(rng.randint(1, 3) for _ in rows)
    wait = tuple(rng.choice((0, 50, 500)) for _ in range(pipeline.devices))
    for eager, split in product((False, True), (False, True)):
        rule = Rule(depth, wait, eager)
        tables = Tables.of(pipeline, ranking_of(pipeline, split, eager))
        taken: list[list[int]] = [[] for _ in range(pipeline.devices)]
        end = list_makespan(tables, rows, tables.loads(rows), rule=rule, taken=taken)
        order = tuple(tuple(tables.passes[i] for i in line) for line in taken)
        assert makespan(pipeline, order) <= end < FAR  # a pass that it waits for may have to wait
        assert sorted(tables.passes) == sorted(item for line in order for item in line)
        for device, line in enumerate(order):
            assert within(pipeline, device, list(line))
            flying = Counter[int]()
            for item in line:
                flying[item.shard] += (item.kind == "F") - (item.kind in "BI")
                assert item.kind != "F" or flying[item.shard] <= depth[item.shard]


def test_bubbles_vanish_with_twice_the_memory() -> None:
    """ZB-H2's claim: with 2p - 1 in flight every device is busy from its first pass to its last."""
    pipeline = Pipeline.alike([UNIT] * 4, 4, 12, limit=2 * 8)
    order = zero_bubble(pipeline, tuple((s,) for s in range(4)))
    check(pipeline, order)
    assert spans(pipeline, order) == (36,) * 4


def test_many_microbatches_are_ordered_by_the_rule_that_is_best_for_fewer() -> None:
    """No bubble in 200 microbatches on two stages."""
    pipeline = Pipeline.alike([UNIT] * 2, 2, 200, limit=8)
    order = zero_bubble(pipeline, PLACES)
    check(pipeline, order)
    assert max(spans(pipeline, order)) == 600
