"""Stages, sketches and waits of pipelines, compared with all cuts there are, with rounds, and with
figures by hand."""

from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import mixed, piped, synthetic

from planner.inputs import Layout, layouts, parse_layout
from planner.lowering import PipelineRound, PipelineStrategy
from planner.orders import NAMED
from planner.pipelines import Passes, beside
from planner.pipelines.delays import Delays
from planner.pipelines.sketch import Sketch, promising, sketches
from planner.pipelines.stages import StageWork, cut
from planner.shards import Mode, TaskCosts
from plans import violations
from profiles.schema import Task


def looked_at(task: Task, layout: str, names: Sequence[str]) -> list[Sketch]:
    return list(sketches(task, piped.LINKS, [parse_layout(layout)], names))


@pytest.mark.parametrize("order", NAMED)
@pytest.mark.parametrize("layout", ["2x1", "3,1", "2x2", "1x3"])
def test_no_round_is_shorter_than_the_bound(layout: str, order: str) -> None:
    """With parameters small and links fast, so that only passes matter; also where both parts of a
    backward together take less than the whole."""
    for seed in range(4):
        made = synthetic.task("a", layers=8, seed=seed, param_bytes=64, boundary_bytes=64)
        task = piped.halving(made) if seed % 2 else made
        for one in looked_at(task, layout, [order]):
            assert one.bound_us <= PipelineRound(one.strategy, piped.LINKS).period_us


def test_stages_lie_on_their_devices() -> None:
    """Every shard of a stage on all of them, microbatches shared out; with chunks, in turn."""
    found = looked_at(synthetic.task("a", layers=8), "2,1", ["breadth"])
    assert {one.pipelines[0].chunks for one in found} == {1, 2, 4}
    for one in found:
        places = one.strategy.replicas
        stages = [p for at, p in enumerate(places) if not at or places[at - 1] != p]
        assert stages == [(0, 1), (2,)] * one.pipelines[0].chunks


def test_sketches_of_one_order_differ() -> None:
    """No two of the same layout, microbatch and chunks have equal shards."""
    task = synthetic.task("a", layers=12)
    for pair in (("2x1", ["1f1b"]), ("1x2", ["gpipe"])):
        found = [
            (s.costs.microbatch, s.pieces, s.pipelines[0].chunks) for s in looked_at(task, *pair)
        ]
        assert len(set(found)) == len(found)


def test_devices_of_uneven_layouts_may_have_several_stages() -> None:
    """Also where any order will do; with one stage each they are not looked at twice."""
    found = looked_at(synthetic.task("a", layers=12), "1,1,2", [*NAMED])
    chunks = {name: {s.pipelines[0].chunks for s in found if s.named == name} for name in NAMED}
    assert chunks["interleaved"] == {2, 4}
    assert chunks["breadth"] == {1, 2, 4}


def test_stages_have_as_many_replicas_as_layers_are_to_have() -> None:
    """None where no cut is so."""
    task, teams = synthetic.task("a", layers=6), (1, 1, 2, 2, 2, 0)
    for layout, ends in (("1,2", {(0, 2, 6)}), ("2x1", set()), ("1,1,2", {(0, 1, 2, 6)})):
        found = sketches(task, piped.LINKS, [parse_layout(layout)], ["1f1b"], teams)
        assert {one.pipelines[0].stages for one in found} == ends


def test_few_of_many_uneven_layouts_are_promising() -> None:
    """All even ones are, and one that was asked for."""
    task = synthetic.task("a", layers=8, batch=8)
    every = list(sketches(task, piped.LINKS, list(layouts(8)), [*NAMED]))
    kept = promising(every)
    assert {s.layout for s in every if s.layout.even} <= {s.layout for s in kept}
    assert len({(s.layout, s.costs.microbatch) for s in kept if not s.layout.even}) == 16
    assert min(every, key=lambda s: s.bound_us).layout in {s.layout for s in kept}
    asked = looked_at(task, "5,2,1", ["1f1b"])
    assert promising(asked) == asked


def test_layers_that_change_their_buffers_have_no_replicas() -> None:
    """Their stage is cut such that it has one device; where all have several there is none."""
    task = synthetic.task("a", layers=6)
    last = structs.replace(task.layers[-1], in_turn=True)
    fixed = structs.replace(task, layers=(*task.layers[:-1], last))
    assert looked_at(fixed, "3,1", ["1f1b"])
    assert not looked_at(fixed, "1,3", ["1f1b"])
    assert looked_at(task, "1,3", ["1f1b"])
    assert {s.layout for s in looked_at(fixed, "2x1", ["gpipe"])} == {Layout(((1, 1),))}


def test_a_stage_may_have_a_shard_for_each_of_many_replicas() -> None:
    """Where it has as many layers; with few replicas it has four at most."""
    task = synthetic.task("a", layers=8, batch=8)
    most = [
        max(len(s.strategy.shards) for s in looked_at(task, layout, ["1f1b"]))
        for layout in ("1x6", "1x2")
    ]
    assert most == [6, 4]


def test_pipelines_have_microbatches_and_devices_of_their_own() -> None:
    """Each microbatch runs through all shards on the devices of one pipeline, from its first to its
    last."""
    layout, counts, strategy = mixed.drawn(Random(3))
    first = 0
    for stages, count in zip(layout.stages, counts, strict=True):
        for m in range(first, first + count):
            places = [strategy.where[k, m] for k in range(len(strategy.shards))]
            assert sorted(set(places)) == [*chain(*stages)]
            assert all(b - a in (0, 1) for a, b in pairwise(places))
        first += count


def test_the_task_has_the_largest_microbatches_of_its_pipelines() -> None:
    """Whichever has them: by these it is described."""
    task = synthetic.task("a", layers=4, batch=8)
    batches = [TaskCosts(task, 1, count=3), TaskCosts(task, 4, count=2)]
    sketch = beside([2, 1], batches, Passes("1f1b"), range(5), 1, piped.LINKS)
    assert sketch
    costs = sketch.strategy.costs
    assert (costs.microbatch, costs.microbatches) == (4, 5)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_all_pipelines_are_added_up(seed: int) -> None:
    """The checker proves plans of random layouts, where every shard has a replica in each
    pipeline."""
    layout, _, strategy = mixed.drawn(Random(seed))
    assert all(len(devices) == len(layout.pipelines) for devices in strategy.replicas)
    kept = range(len(strategy.sized))
    assert violations(mixed.alone(strategy, kept)) == []


works = st.one_of(
    st.builds(StageWork, *(st.integers(0, high) for high in (9, 3, 12, 24)), st.just(0)),
    st.integers(1, 4).map(StageWork),
)
chains = st.lists(works, min_size=1, max_size=7)
stages = st.lists(st.integers(1, 3), min_size=1, max_size=4)  # replicas of each


def load(layers: list[StageWork], first: int, end: int, replicas: int, microbatches: int) -> int:
    """The time for which a replica computes or sends; each owns an equal part of the parameters."""
    own, each = layers[first:end], -(-microbatches // replicas)
    sent = sum(layers[cut].hop for cut in (first, end) if 0 < cut < len(layers))
    owned = -(-2 * (replicas - 1) * sum(work.exchange for work in own) // replicas)
    computes = each * sum(work.time for work in own) + sum(work.once for work in own)
    return max(computes, each * sent + owned)


def loads(
    layers: list[StageWork], ends: tuple[int, ...], replicas: list[int], many: int
) -> list[int]:
    """Of all stages."""
    both = zip(pairwise(ends), replicas, strict=True)
    return [load(layers, *stage, count, many) for stage, count in both]


def every(layers: list[StageWork], replicas: list[int]) -> list[tuple[int, ...]]:
    """All cuts into these stages."""
    end = len(layers)
    return [(0, *way, end) for way in combinations(range(1, end), len(replicas) - 1)]


@settings(max_examples=50)
@given(chains, stages, st.integers(1, 5))
def test_cuts_are_the_best_there_are(
    layers: list[StageWork], replicas: list[int], microbatches: int
) -> None:
    """The least longest load of all cuts, and of these the evenest."""
    found = cut(layers, replicas, microbatches, range(len(layers) + 1))
    ways = [loads(layers, way, replicas, microbatches) for way in every(layers, replicas)]
    if not ways:
        assert found == ()
        return
    ours = loads(layers, found, replicas, microbatches)
    least = min(map(max, ways))
    assert max(ours) == least

    def squares(way: list[int]) -> int:
        return sum(load * load for load in way)

    assert squares(ours) == min(squares(way) for way in ways if max(way) == least)


@settings(max_examples=50)
@given(chains, st.lists(st.integers(0, 3), min_size=7, max_size=7), stages)
def test_layers_have_the_replicas_that_they_must(
    layers: list[StageWork], teams: list[int], replicas: list[int]
) -> None:
    """Only cuts whose stages have them are compared."""
    layers = [one._replace(team=team) for one, team in zip(layers, teams, strict=False)]

    def fits(count: int, first: int, end: int) -> bool:
        return {one.team for one in layers[first:end]} <= {0, count}

    ways = [
        max(loads(layers, way, replicas, 3))
        for way in every(layers, replicas)
        if all(fits(n, *stage) for n, stage in zip(replicas, pairwise(way), strict=True))
    ]
    found = cut(layers, replicas, 3, range(len(layers) + 1))
    assert (max(loads(layers, found, replicas, 3)) if found else None) == min(ways, default=None)


def test_tied_layers_stay_in_one_stage() -> None:
    """With only the points between which nothing is shared; no two stages are left here."""
    layers = [StageWork(10)] * 8
    assert cut(layers, (1, 1), 1, range(9)) == (0, 4, 8)
    assert cut(layers, (1, 1), 1, (0, 1, 6, 8)) == (0, 6, 8)
    assert cut(layers, (1, 1), 1, (0, 8)) == ()


def test_a_replica_sends_its_part_of_what_owners_get_and_give() -> None:
    """Of three replicas each sends two thirds of its gradients, and a third of the parameters to
    each of the two others. Where that takes 40 µs the layer has replicas, where it takes 120 none.
    """
    ends = [
        cut(
            [StageWork(10), StageWork(10), StageWork(10, exchange=us), StageWork(10)],
            (1, 3),
            3,
            range(5),
        )
        for us in (30, 90)
    ]
    assert ends == [(0, 1, 4), (0, 3, 4)]


SEND = piped.LINKS.send_us
SAVED = Mode("resident", "device", "saved")
STAYS = Mode("resident", "device")


def alike(layers: int, batch: int = 3) -> Task:
    return synthetic.task("a", layers=layers, batch=batch, heterogeneous=False)


def delays(one: PipelineStrategy) -> Delays:
    return Delays(one, piped.LINKS)


def test_a_device_waits_between_forwards_and_backwards() -> None:
    """Three forwards, then gradients one hop after each backward behind; nobody else waits."""
    one = piped.piped(alike(2), (0, 1, 2), [(0,), (1,)], "gpipe", [SAVED, STAYS])
    first, second = one.shards
    hop, found = SEND(second.in_bytes), delays(one)
    forward, whole, back = first.graph_forward_us, second.backward_us, first.graph_backward_us
    assert forward < whole > back
    span = forward + hop + 3 * whole + hop + back
    assert found.span_us == span
    assert found.idle == [span - 3 * (forward + back), 0]
    assert found.gathered == [span, span - hop - back]
    assert found.firsts == {(0, 0): 0, (1, 1): forward + hop}


def test_gradients_of_replicas_come_home_one_after_the_other() -> None:
    """A device sends those of the shard that is done first before the others."""
    one = piped.piped(alike(2, batch=2), (0, 1, 2), [(0, 1), (0, 1)], "gpipe", [SAVED, STAYS])
    first, second = one.shards
    assert set(one.homes) == {0, 1}
    ends = [delays(one).lasts[k, 0] for k in (0, 1)]
    both = SEND(first.grad_bytes), SEND(second.grad_bytes)
    adds = [piped.LINKS.add_us(shard.grad_bytes) for shard in (first, second)]
    sums = [sum(each) for each in zip(ends, both, adds, strict=True)]
    assert delays(one).gathered == sums


def test_a_device_with_two_shards_to_send_takes_them_in_turn() -> None:
    """The first one's gradients wait until those of the second are sent."""
    one = piped.piped(alike(3, batch=2), (0, 1, 2, 3), [(0, 1)] * 3, "gpipe", [SAVED] * 2 + [STAYS])
    found, away = delays(one), one.homes[0] ^ 1
    mine = [k for k in (2, 1, 0) if one.homes[k] != away]
    free = 0
    for k in mine:
        free = max(free, found.lasts[k, away]) + SEND(one.shards[k].grad_bytes)
        assert found.gathered[k] == free + piped.LINKS.add_us(one.shards[k].grad_bytes)
    assert len(mine) == 2


@pytest.mark.parametrize("update", ["host", "device"])
def test_parameters_come_back_behind_those_of_others(update: str) -> None:
    """The second update on the host waits for the first; on a device none waits for another."""
    mode = Mode("kept", update)  # type: ignore[arg-type]
    one = piped.piped(alike(2), (0, 1, 2), [(0,), (0,)], "gpipe", [mode, mode])
    found, links, shard = delays(one), piped.LINKS, one.shards[0]
    copies = links.spill_us(shard.grad_bytes) + links.prefetch_us(shard.param_bytes)
    us = shard.update_host_us if update == "host" else shard.update_device_us
    assert found.back_us(0, 0, mode) == found.gathered[0] - found.firsts[0, 0] + copies + us
    assert found.back_us(1, 0, mode) == found.gathered[1] - found.firsts[0, 0] + copies + us
    assert found.served_us(1, mode) == us * (update == "host")


def test_no_wait_is_much_longer_than_a_round() -> None:
    """The time until a shard's parameters are back for the next round is an estimate, since the
    passes of other devices may begin later than it thinks."""
    over = 0
    for seed in range(200):
        one = piped.drawn(Random(seed))
        found, period = delays(one), PipelineRound(one, piped.LINKS).period_us
        trained = [k for k, shard in enumerate(one.shards) if shard.grad_bytes]
        backs = [found.back_us(k, k, one.modes[k]) for k in trained]
        assert found.span_us <= period, seed
        assert max(backs, default=0) <= period * 1.04, seed
        over += max(backs, default=0) > period * 1.01
    assert over < 10
