"""Stages, sketches and waits of pipelines, compared with all cuts there are, with rounds, and with
figures by hand."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from random import Random
from time import monotonic
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support import piped, synthetic

from planner.inputs import Effort, Layout, parse_layout
from planner.lowering import PipelineRound, PipelineStrategy
from planner.orders import NAMED, Pass
from planner.pipelines.choices import Choices
from planner.pipelines.delays import Delays
from planner.pipelines.modes import ModeProgram
from planner.pipelines.sketch import Sketch, sketches
from planner.pipelines.stages import StageWork, cut
from planner.pipelines.windows import loads, windows
from planner.shards import Mode, backward_us, forward_us
from profiles.codec import align
from profiles.schema import Rate, Task


def looked_at(task: Task, layout: str, names: Sequence[str]) -> list[Sketch]:
    return list(sketches(task, piped.LINKS, [parse_layout(layout)], names))


@pytest.mark.parametrize("order", NAMED)
@pytest.mark.parametrize("layout", ["2x1", "3,1", "2x2", "1x3"])
def test_no_round_is_shorter_than_the_bound(layout: str, order: str) -> None:
    """With parameters small and links fast, so that only passes matter; also where both parts of a
    backward together take less than the whole."""
    for seed in range(2):
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


@pytest.mark.parametrize(
    ("layouts", "finest"),
    [("1x4", 40), ("2x2", 40), ("1x4 2x2", 40), ("2x2 4x1", 16), ("2x1 3x1", 40)],
)
def test_single_layers_are_shards_where_there_is_one_stage_or_layout(
    layouts: str, finest: int
) -> None:
    """And on few devices; of several layouts on more of them there are four in a stage."""
    task = synthetic.task("a", layers=40, heterogeneous=False)
    chosen = [parse_layout(text) for text in layouts.split()]
    every = list(sketches(task, piped.LINKS, chosen, ["1f1b"]))
    assert max(len(one.cuts) - 1 for one in every) == finest


def test_layers_that_change_their_buffers_have_no_replicas() -> None:
    """Their stage is cut such that it has one device; where all have several there is none."""
    task = synthetic.task("a", layers=6)
    last = structs.replace(task.layers[-1], in_turn=True)
    fixed = structs.replace(task, layers=(*task.layers[:-1], last))
    assert looked_at(fixed, "3,1", ["1f1b"])
    assert not looked_at(fixed, "1,3", ["1f1b"])
    assert looked_at(task, "1,3", ["1f1b"])
    assert {s.layout for s in looked_at(fixed, "2x1", ["gpipe"])} == {Layout(((1, 1),))}


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


def stage_loads(
    layers: list[StageWork], ends: tuple[int, ...], replicas: list[int], many: int
) -> list[int]:
    """Of all stages."""
    both = zip(pairwise(ends), replicas, strict=True)
    return [load(layers, *stage, count, many) for stage, count in both]


def every(layers: list[StageWork], replicas: list[int]) -> list[tuple[int, ...]]:
    """All cuts into these stages."""
    end = len(layers)
    return [(0, *way, end) for way in combinations(range(1, end), len(replicas) - 1)]


@given(chains, stages, st.integers(1, 5))
def test_cuts_are_the_best_there_are(
    layers: list[StageWork], replicas: list[int], microbatches: int
) -> None:
    """The least longest load of all cuts, and of these the evenest."""
    found = cut(layers, replicas, microbatches, range(len(layers) + 1))
    ways = [stage_loads(layers, way, replicas, microbatches) for way in every(layers, replicas)]
    if not ways:
        assert found == ()
        return
    ours = stage_loads(layers, found, replicas, microbatches)
    least = min(map(max, ways))
    assert max(ours) == least

    def squares(way: list[int]) -> int:
        return sum(load * load for load in way)

    assert squares(ours) == min(squares(way) for way in ways if max(way) == least)


@given(chains, st.lists(st.integers(1, 2), min_size=2, max_size=3), st.integers(2, 3))
def test_stages_in_turn_are_the_evenest_or_better_for_the_busiest_device(
    layers: list[StageWork], replicas: list[int], turns: int
) -> None:
    every, points = replicas * turns, range(len(layers) + 1)
    evenest, found = cut(layers, every, 2, points), cut(layers, replicas, 2, points, turns)

    def busiest(ends: tuple[int, ...]) -> int:
        loads = stage_loads(layers, ends, every, 2)
        return max(sum(loads[n :: len(replicas)]) for n in range(len(replicas)))

    assert (found == ()) == (evenest == ())
    assert found == evenest or busiest(found) < busiest(evenest)


def test_stages_in_turn_leave_no_device_most_of_the_long_ones() -> None:
    """Of 36 layers the evenest stages give ten to one device, with a long last one more still."""
    for layers in ([StageWork(4)] * 36, [StageWork(4)] * 24 + [StageWork(9)]):
        ends = cut(layers, (1, 1, 1, 1), 1, range(len(layers) + 1), 4)
        loads = stage_loads(layers, ends, [1] * 16, 1)
        busiest = max(sum(loads[n::4]) for n in range(4))
        assert busiest * 4 <= sum(loads) * 1.08


def test_tied_layers_stay_in_one_stage() -> None:
    """With only the points between which nothing is shared; no two stages are left here."""
    layers = [StageWork(10)] * 8
    assert cut(layers, (1, 1), 1, range(9)) == (0, 4, 8)
    assert cut(layers, (1, 1), 1, (0, 1, 6, 8)) == (0, 6, 8)
    assert cut(layers, (1, 1), 1, (0, 8)) == ()


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


def test_no_wait_is_much_longer_than_a_round() -> None:
    """The time until a shard's parameters are back for the next round is an estimate, since the
    passes of other devices may begin later than it thinks."""
    over = 0
    for seed in range(60):
        one = piped.drawn(Random(seed))
        found, period = delays(one), PipelineRound(one, piped.LINKS).period_us
        trained = [k for k, shard in enumerate(one.shards) if shard.grad_bytes]
        backs = [found.back_us(k, k, one.modes[k]) for k in trained]
        assert found.span_us <= period, seed
        assert max(backs, default=0) <= period * 1.04, seed
        over += max(backs, default=0) > period * 1.01
    assert over < 4


HOST = 1 << 30
PARTS = (8, 1, 0, -1)  # of what modes may take, from the least on


def program(one: PipelineStrategy, room: int, host: int = HOST) -> ModeProgram:
    return ModeProgram(one, piped.LINKS, (room,) * one.devices, (host,))


def effort() -> Effort:
    return Effort(monotonic() + 60, 0)


def small(seed: int) -> PipelineStrategy:
    """Three layers on two devices, with links about as busy as the devices."""
    task: Task = synthetic.task("a", layers=3, seed=seed, param_bytes=1 << 19, forward_us=400)
    places = [((0,), (0,), (1,)), ((0,), (1,), (0, 1))][seed % 2]
    return piped.piped(task, (0, 1, 2, 3), places, ["gpipe", "1f1b"][seed % 2])


def held(one: ModeProgram, modes: Sequence[Mode]) -> int:
    """The most bytes of any device: of its slab in any window, and beside it in any other."""
    slabs, most = Counter[int](), Counter[int]()
    for window in windows(one.strategy):
        pairs = [one.choices.held_bytes(window, own, modes[own.shard]) for own in window.held]
        slab, beside = map(sum, zip(*pairs, strict=True))
        slabs[window.device] = max(slabs[window.device], slab)
        most[window.device] = max(most[window.device], beside)
    return max((slabs + most).values())


@cache
def every_size(seed: int) -> list[int]:
    """The bytes of all there is to choose."""
    one = program(small(seed), 0)
    return [held(one, modes) for modes in choices(one)]


def choices(one: ModeProgram) -> Iterator[tuple[Mode, ...]]:
    return product(*(one.choices.modes(k) for k in range(len(one.strategy.shards))))


def room_of(seed: int, part: int) -> int:
    """So much of what there is between the modes that take least and those that take most."""
    sizes = every_size(seed)
    return min(sizes) + (max(sizes) - min(sizes)) * part // 8


@pytest.mark.parametrize("activations", ["saved", "recompute"])
def test_what_waits_from_i_to_w_is_seen(activations: Literal["saved", "recompute"]) -> None:
    """Left of every microbatch, where weights come last: about as many bytes as a round takes."""
    task = piped.halving(synthetic.task("a", layers=4, batch=6, boundary_bytes=1 << 20))
    modes = (*(Mode("resident", "device", activations),) * 3, piped.STAYS)
    one = piped.piped(task, (0, 1, 2, 3, 4), ((0,), (0,), (1,), (1,)), "zero-bubble", modes)
    assert one.halved
    seen = program(one, 1 << 40).held(one.modes)
    took = [memory.bytes for memory in PipelineRound(one, piped.LINKS).memory]
    assert all(abs(own - most) <= most // 20 for own, most in zip(seen, took, strict=True))


def test_parameters_of_replicas_go_by_the_host_where_devices_send_slowly() -> None:
    """As soon as that is what a round waits for."""
    task = synthetic.task("a", layers=6, heterogeneous=False, batch=4, param_bytes=1 << 20)
    one = piped.piped(task, tuple(range(7)), ((0, 1),) * 6, "breadth")
    fast, slow = (
        ModeProgram(one, replace(piped.LINKS, p2p=Rate(by, 20)), (1 << 40,) * 2, (HOST,))
        for by in (10**11, 10**8)
    )
    chosen = [program.chosen(effort()) for program in (fast, slow)]
    stay = [sum(m.params == "resident" for m in c.strategy.modes) for c in chosen if c]
    assert stay[0] > stay[1]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", range(2))
def test_modes_fit_and_parts_of_them_are_no_worse(seed: int, part: int) -> None:
    """Where any modes fit some are found, and what ranks sketches is no longer than they are."""
    room = room_of(seed, part)
    one = program(small(seed), room)
    chosen, relaxed = one.chosen(effort()), one.relaxed(effort())
    assert (chosen is None) == (room < min(every_size(seed)))
    if chosen:
        assert held(one, chosen.strategy.modes) <= room
        assert relaxed
        assert relaxed.us <= chosen.us + 1


@pytest.mark.parametrize("part", PARTS[:-1])
@pytest.mark.parametrize("seed", range(2))
def test_no_modes_that_fit_are_better(seed: int, part: int) -> None:
    """Of all there is to choose; and those chosen are worth what the program says."""
    room = room_of(seed, part)
    one = program(small(seed), room)
    chosen = one.chosen(effort())
    assert chosen
    fits = (m for m, size in zip(choices(one), every_size(seed), strict=True) if size <= room)
    best = min(worth(one, modes) for modes in fits)
    assert abs(worth(one, chosen.strategy.modes) - chosen.us) <= 2
    assert best - 2 <= chosen.us <= best * 1.012 + 2


def worth(one: ModeProgram, modes: Sequence[Mode]) -> float:
    """The objective, shard by shard: the longest of what a round takes, and a part of all work."""
    own, delays, most, work = one.strategy, one.delays, 0.0, 0.0
    pairs = list(zip(own.shards, modes, strict=True))
    chain = sum(forward_us(*pair) + backward_us(*pair) for pair in pairs)
    times, counts = loads(own), Counter((d, k) for (k, _), d in own.where.items())
    for device in range(own.devices):
        here = [k for k in range(len(modes)) if counts[device, k]]
        home = [k for k in here if own.homes[k] == device]
        on_host = [k for k in home if modes[k].update == "host"]
        copies = [
            one.choices.copies_us(k, device, modes[k], times[device, k], counts[device, k])
            for k in here
        ]
        mine = [
            sum(one.choices.compute_us(k, device, modes[k], counts[device, k]) for k in here)
            + delays.idle[device] * chain / delays.chain_us,
            sum(come for come, _ in copies),
            sum(go for _, go in copies),
            sum(own.shards[k].update_host_us for k in on_host),
            sum(one.choices.sent_us(k, device, modes[k]) for k in here),
        ]
        most, work = max(most, *mine), work + sum(mine)
        ended = sorted(
            (k for k in home if own.shards[k].grad_bytes), key=delays.gathered.__getitem__
        )
        for at, k in enumerate(ended):
            most = max(most, delays.back_us(k, k, modes[k]))
            for early in range(at):
                lane = delays.lane(k, modes[k])
                queue = [n for n in ended[early:at] if delays.lane(n, modes[n]) == lane != ""]
                others = sum(delays.served_us(n, modes[n]) for n in queue)
                if lane:
                    most = max(most, delays.back_us(ended[early], k, modes[k]) + others)
    return most + 0.03 * work / own.devices


@pytest.mark.parametrize("seed", range(2))
def test_the_modes_that_take_least(seed: int) -> None:
    one = program(small(seed), 0)
    chosen = one.chosen(effort(), least=True)
    assert chosen
    assert held(one, chosen.strategy.modes) <= min(every_size(seed)) * 1.006


@pytest.mark.parametrize("host", [HOST, 1 << 16, 0])
@pytest.mark.parametrize("seed", range(2))
def test_thrifty_modes_hold_about_the_least(seed: int, host: int) -> None:
    one = program(small(seed), 0, host)
    strategy = one.thrifty(effort())
    assert strategy
    fit = [
        n for m, n in zip(choices(one), every_size(seed), strict=True) if waiting(one, m) <= host
    ]
    assert held(one, strategy.modes) <= min(fit) * 1.01
    assert waiting(one, strategy.modes) <= host


def waiting(one: ModeProgram, modes: Sequence[Mode]) -> int:
    """The bytes that wait on the host, buffer by buffer."""
    made = replace(one.strategy, modes=tuple(modes))
    return sum(align(size) for _, size in made.waiting())


def test_what_waits_on_the_host_is_counted() -> None:
    """Without room there, nothing is put aside and updates are on the devices."""
    chosen = program(small(0), 1 << 40, host=0).chosen(effort())
    assert chosen
    assert {mode.update for mode in chosen.strategy.modes} <= {"device", "device-streamed"}
    assert not [m for m in chosen.strategy.modes if m.spilled or m.activations == "offload"]


def test_windows_see_the_most_that_is_in_flight() -> None:
    """Of every_size device: microbatches with boundaries on it, walked pass by pass."""
    for seed in range(30):
        one = piped.drawn(Random(seed))
        seen = [0] * one.devices
        for window in windows(one):
            flying = sum(own.flying * one.shards[own.shard].in_bytes for own in window.held)
            seen[window.device] = max(seen[window.device], flying)
        assert seen == [most_in_flight(one, passes) for passes in one.order], seed


def test_windows_see_the_most_gradients() -> None:
    """Those of all shards of a device are there when the last microbatch begins to go down."""
    task = synthetic.task("a", layers=8)
    one = piped.piped(task, tuple(range(9)), [(0,)] * 4 + [(1,)] * 4, "gpipe")
    seen = Counter[int]()
    for window in windows(one):
        learn = sum(own.learns for own in window.held)
        seen[window.device] = max(seen[window.device], learn)
    assert seen == {0: 4, 1: 4}


@pytest.mark.parametrize("slow", [1, 1000])
def test_slow_copies_of_what_is_packed_are_waited_for(slow: int) -> None:
    """A pass takes no less than them."""
    one = replace(small(0), modes=(Mode("kept", "host", "offload"),) * 3)
    link = piped.LINKS.h2d_both
    rate = structs.replace(link, bytes_per_s=link.bytes_per_s // slow)
    choices = Choices(one, replace(piped.LINKS, h2d_both=rate, d2h_both=rate))
    mode, shard = one.modes[0], one.shards[0]
    come, go = choices.copies_us(0, 0, Mode("resident", "device", "offload"), 1, 1)
    passes = forward_us(shard, mode), backward_us(shard, mode)
    taken = choices.compute_us(0, 0, mode, 1)
    if slow > 1:
        assert taken == come + go > sum(passes)
    else:
        assert sum(passes) <= taken <= sum(passes) + choices.links.pack_us(shard) + come + go


def most_in_flight(one: PipelineStrategy, passes: Sequence[Pass]) -> int:
    """The most bytes of boundaries between forward and the last part of backward."""
    most = now = 0
    for kind, k, _ in passes:
        begins = kind == "F" or (k == one.last and kind in "BI")
        now += begins * one.shards[k].in_bytes
        most = max(most, now)
        ends = kind == ("W" if k in one.halved else "B")
        now -= ends * one.shards[k].in_bytes
    return most
