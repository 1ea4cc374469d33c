"""Sketches: what is looked at, and that no round is shorter than its sketch says."""

from collections.abc import Sequence

import pytest
from msgspec import structs
from support import piped, synthetic

from planner.inputs import Layout, layouts, parse_layout
from planner.lowering import PipelineRound
from planner.orders import NAMED
from planner.pipelines.sketch import Sketch, promising, sketches
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
