"""Named orders against lists written by hand, and their rules under memory and with replicas."""

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.order_check import check, spans

from planner.errors import Infeasible
from planner.orders import (
    NAMED,
    Cost,
    InvalidOrder,
    Order,
    Pass,
    Pipeline,
    breadth,
    by_columns,
    gpipe,
    improved,
    makespan,
    peaks,
    share,
    timed,
)

ONE = Cost(1, 1, 1, held=2, left=1)


def _text(order: Order) -> list[str]:
    """0F1 is the forward of microbatch 1 through shard 0."""
    return [" ".join(f"{p.shard}{p.kind}{p.microbatch}" for p in line) for line in order]


def _made(name: str, shards: int, devices: int, microbatches: int) -> list[str]:
    """Shard k on device k mod devices."""
    pipeline = Pipeline.alike([ONE] * shards, devices, microbatches)
    return _text(NAMED[name](pipeline, tuple((k % devices,) for k in range(shards))))


def test_gpipe_does_all_forwards_first() -> None:
    assert _made("gpipe", 2, 2, 3) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]


def test_1f1b_has_as_many_in_flight_as_stages_behind() -> None:
    """The figure of PipeDream's flush schedule: four stages, six microbatches."""
    assert _made("1f1b", 4, 4, 6) == [
        "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5",
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2B5",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5",
    ]


def test_interleaved_takes_rounds_of_as_many_microbatches_as_devices() -> None:
    """Megatron's and torch's looped 1F1B: two devices with two shards each, four microbatches."""
    assert _made("interleaved", 4, 2, 4) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_breadth_takes_all_microbatches_of_a_shard_in_turn() -> None:
    """Four shards on two devices, two microbatches, gradients in ascending order."""
    assert _made("breadth", 4, 2, 2) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1",
    ]


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("slow", [None, 0, 3])
def test_replicas_have_the_order_of_the_first_ones(name: str, slow: int | None) -> None:
    """Each with its own microbatches; where one of them is slower, all devices have the order that
    is made for all of them."""
    pipeline, places = Pipeline.alike([ONE] * 4, 4, 8), ((0, 1), (2, 3)) * 2
    if slow is not None:
        costs = (ONE._replace(forward=3),) * 4
        rows = tuple(costs if d == slow else row for d, row in enumerate(pipeline.costs))
        pipeline = replace(pipeline, costs=rows)
    found = by_columns(NAMED[name], pipeline, places)
    check(pipeline, found)
    if slow is not None:
        assert found == NAMED[name](pipeline, places)
        return
    alone = NAMED[name](Pipeline.alike([ONE] * 4, 2, 4), ((0,), (1,)) * 2)
    for device, line in enumerate(found):
        assert [p.microbatch % 2 for p in line] == [device % 2] * len(line)
        halved = [p._replace(microbatch=p.microbatch // 2) for p in line]
        assert tuple(halved) == alone[device // 2]


@pytest.mark.parametrize(
    ("name", "layers", "published"),
    [
        ("gpipe", 4, 9028.112),
        ("1f1b", 4, 9028.112),
        ("interleaved", 1, 7539.218),
        ("breadth", 1, 7385.618),
    ],
)
def test_makespans_are_those_of_another_simulator(name: str, layers: int, published: float) -> None:
    """RoundPipe's artifact (ITcarrot/RoundPipe-artifact, pp-simulate @e44270a): Llama3-8B on 8
    GPUs, 16 microbatches, a head in the last stage, all layers recomputed; ms."""
    forward, back, head, head_back, hop = 18.50370313, 41.20659375, 37.2255, 74.501, 3.2
    costs = []
    for shard in range(32 // layers):
        last = (shard + 1) * layers == 32
        times = [layers * forward + last * head, layers * (forward + back) + last * head_back]
        f, b = (round(ms * 1_000_000) for ms in times)
        costs.append(Cost(f, b, 0, hop=round(hop * 1_000_000)))
    pipeline = Pipeline.alike(costs, 8, 16)
    places = tuple((shard % 8,) for shard in range(len(costs)))
    named = partial(breadth, descending=True) if name == "breadth" else NAMED[name]
    assert makespan(pipeline, named(pipeline, places)) / 1_000_000 == pytest.approx(published, 1e-6)


def test_a_last_shard_without_forward_has_backwards_only() -> None:
    pipeline = Pipeline.alike([ONE, ONE._replace(forward=0)], 2, 3)
    order = NAMED["1f1b"](pipeline, ((0,), (1,)))
    assert _text(order) == ["0F0 0F1 0B0 0F2 0B1 0B2", "1B0 1B1 1B2"]


def test_replicas_share_microbatches_and_their_stage_behind_takes_all() -> None:
    """Two devices for the first stage: each has half as many in flight as one alone would."""
    pipeline = Pipeline.alike([ONE] * 2, 3, 4)
    assert _text(NAMED["1f1b"](pipeline, ((0, 1), (2,)))) == [
        "0F0 0F2 0B0 0B2",
        "0F1 0F3 0B1 0B3",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
    ]


def test_memory_limits_how_many_are_in_flight() -> None:
    """Room for two microbatches where 1F1B would like three."""
    pipeline = Pipeline.alike([ONE] * 3, 3, 4, limit=4)
    order = NAMED["1f1b"](pipeline, ((0,), (1,), (2,)))
    assert _text(order)[0] == "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"


def test_memory_for_later_shards_is_kept_free() -> None:
    """Room for two forwards: the second is that of the same microbatch further on."""
    pipeline = Pipeline.alike([ONE] * 4, 2, 2, limit=4)
    order = NAMED["interleaved"](pipeline, ((0,), (1,), (0,), (1,)))
    assert _text(order)[0] == "0F0 2F0 2B0 0F1 0B0 2F1 2B1 0B1"


def test_zero_bubble_lets_weights_wait_for_gaps() -> None:
    """The handcrafted schedule of the paper with the memory of 1F1B, for two stages."""
    pipeline = Pipeline.alike([ONE] * 2, 2, 3, limit=4)
    order = NAMED["zero-bubble"](pipeline, ((0,), (1,)))
    assert _text(order) == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("devices", [2, 4])
def test_zero_bubble_of_stages_in_turn_holds_half_more_than_1f1b(
    devices: int, microbatches: int
) -> None:
    """Three of each device, and its devices wait for less than half as long."""
    pipeline = Pipeline.alike([ONE] * 3 * devices, devices, microbatches)
    places = tuple((k % devices,) for k in range(3 * devices))
    split, whole = (NAMED[name](pipeline, places) for name in ("zero-bubble", "interleaved"))
    held = zip(peaks(pipeline, split), peaks(pipeline, whole), strict=True)
    assert all(2 * most <= 3 * other for most, other in held)
    work = 3 * 3 * microbatches
    waits = [max(spans(pipeline, order)) - work for order in (split, whole)]
    assert waits[0] < waits[1] / 2


@pytest.mark.parametrize("name", sorted(NAMED))
def test_what_never_fits_is_infeasible_with_both_numbers(name: str) -> None:
    """Two shards of a microbatch hold 4."""
    pipeline = Pipeline.alike([ONE] * 2, 1, 2, limit=3)
    with pytest.raises(
        Infeasible, match=r"holds .*\(4 bytes\) on device 0, which has .*\(3 bytes\)"
    ) as caught:
        NAMED[name](pipeline, ((0,), (0,)))
    assert caught.value.smallest == 4


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Pipeline, tuple[tuple[int, ...], ...]]:
    """Any costs, replicas, several shards per device, and little memory."""
    devices, shards = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    amount = st.integers(1, 5)
    fused = draw(st.booleans())
    costs = tuple(
        tuple(
            Cost(
                draw(amount) * (not fused or s + 1 < shards),
                draw(amount),
                draw(st.integers(0, 3)),
                held := draw(st.integers(0, 3)),
                draw(st.integers(0, held)),
                draw(st.integers(0, 2)),
            )
            for s in range(shards)
        )
        for _ in range(devices)
    )
    place = st.sets(st.integers(0, devices - 1), min_size=1).map(lambda d: tuple(sorted(d)))
    places = tuple(draw(place) for _ in range(shards))
    needed = [
        sum(row[s].held for s in range(shards) if d in places[s]) for d, row in enumerate(costs)
    ]
    room = draw(st.integers(0, 6))
    return Pipeline(costs, draw(st.integers(1, 6)), tuple(n + room for n in needed)), places


@given(pipelines(), st.sampled_from(sorted(NAMED)))
def test_every_order_is_complete_runs_and_keeps_its_limits(
    case: tuple[Pipeline, tuple[tuple[int, ...], ...]], name: str
) -> None:
    """On any places, in as much memory as one microbatch needs, or a little more."""
    pipeline, places = case
    order = NAMED[name](pipeline, places)
    check(pipeline, order)
    for shard, place in enumerate(places):
        found = {p.microbatch: d for d, line in enumerate(order) for p in line if p.shard == shard}
        assert [found[m] for m in range(pipeline.microbatches)] == share(
            pipeline.microbatches, place
        )


TWO = Pipeline.alike([Cost(2, 3, 1, hop=5), Cost(4, 6, 2, hop=10)], devices=2, microbatches=1)


def test_a_pass_on_another_device_waits_for_the_hop() -> None:
    """The hop of the shard that reads a boundary, and again for its gradient."""
    order = (
        (Pass("F", 0, 0), Pass("B", 0, 0)),
        (Pass("F", 1, 0), Pass("I", 1, 0), Pass("W", 1, 0)),
    )
    assert timed(TWO, order).starts == ((0, 32), (12, 16, 22))
    assert makespan(TWO, order) == 36


def test_a_deadlock_is_an_error_that_names_the_passes() -> None:
    order = ((Pass("B", 0, 0), Pass("F", 0, 0)), (Pass("F", 1, 0), Pass("B", 1, 0)))
    with pytest.raises(InvalidOrder, match=r"deadlock: s0\.B0 on device 0 waits for s1\.B0"):
        timed(TWO, order)


PIPELINE = Pipeline.alike([Cost(1, 1, 1, held=3, left=1)] * 2, 2, 2, limit=6)


def _line(text: str) -> tuple[Pass, ...]:
    """0F1 is the forward of microbatch 1 through shard 0."""
    return tuple(Pass(p[1], int(p[0]), int(p[2])) for p in text.split())  # type: ignore[arg-type]


def test_memory_is_held_from_forward_to_backward_and_partly_to_weights() -> None:
    """3 in flight, 1 from I to W."""
    order: Order = (_line("0F0 0F1 0I0 0I1 0W0 0W1"), _line("1F0 1I0 1F1 1I1 1W0 1W1"))
    assert peaks(PIPELINE, order) == (6, 4)
    tight = Pipeline(PIPELINE.costs, 2, (5, 6))
    with pytest.raises(InvalidOrder, match="passes on device 0 hold 6, but its limit is 5"):
        check(tight, order)


PLACES = ((0,), (1,), (2,))


def _uneven(seed: int) -> Pipeline:
    rng = random.Random(seed)
    costs = [Cost(*(rng.randint(5, 20) for _ in range(3)), 2, 1, rng.randint(0, 3)) for _ in PLACES]
    return Pipeline.alike(costs, 3, 5, limit=8)


def test_memory_is_kept_within() -> None:
    pipeline = replace(_uneven(0), limits=(2,) * 3)
    start = gpipe(pipeline, PLACES)
    check(pipeline, improved(pipeline, start, 20_000))
    free = replace(pipeline, limits=None)
    assert max(spans(free, improved(free, start, 20_000))) < max(spans(free, start))
