"""Rounds on several devices: turns, sums of replicas, and the strategies that they come from."""

import random
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import piped, synthetic
from support.apart import lone
from support.strategies import Loads, Small, in_less, small, some_choice

from planner.lowering import PipelineRound
from planner.lowering.host_bytes import fitted, least_bytes, store
from planner.lowering.round import DeviceRound
from planner.lowering.trees import Join, joins, needed, spread, sums
from planner.lowering.turns import turns
from planner.shards import Mode
from plans import InvalidPlan, prove, violations
from plans.schema import Plan


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_any_way_is_sound(first: int) -> None:
    """Whatever the cuts, places of shards, order and modes: the checker finds nothing."""
    for seed in range(first, first + 20):
        prove(piped.planned(piped.drawn(Random(seed))))


@pytest.mark.parametrize("seed", range(6))
def test_no_device_is_larger_than_it_must_be(seed: int) -> None:
    """With a little less on any device the plan is refused."""
    plan = piped.planned(piped.drawn(Random(seed)))
    (program,) = plan.programs
    needed = max(m.slab_bytes + m.reserve_bytes for m in program.memory)
    small = [structs.replace(d, budget_bytes=needed - 1) for d in plan.devices]
    with pytest.raises(InvalidPlan):
        prove(structs.replace(plan, devices=tuple(small)))


def four_layers(
    *modes: Mode, norms: bool = False, places: tuple[tuple[int, ...], ...]
) -> PipelineRound:
    """Four equal layers in four microbatches, each a shard, in order 1f1b."""
    task = synthetic.task("a", layers=4, heterogeneous=False, norms=norms)
    return PipelineRound(piped.piped(task, (0, 1, 2, 3, 4), places, "1f1b", modes), piped.LINKS)


def counted(made: PipelineRound) -> Counter[str]:
    """The round's ops by kind."""
    return Counter(op.name.kind for op in made.program().round)


STAGES = ((0,), (0,), (1,), (1,))


def test_only_what_crosses_is_sent() -> None:
    """A boundary and a gradient for each microbatch, and the batch for the loss."""
    assert counted(four_layers(places=STAGES))["X"] == 3 * 4


def test_replicas_send_gradients_to_the_owner_and_get_parameters_back() -> None:
    """Both once for each replica but the owner, whose device adds and updates."""
    found = counted(four_layers(places=((0, 1, 2),) * 4))
    assert (found["X"], found["R"], found["U"]) == (2 * 2 * 4, 2 * 4, 4)


@pytest.mark.parametrize(
    ("mode", "loads"),
    [(Mode("kept"), 4), (Mode("resident", "device"), 0), (Mode("kept", "device-streamed"), 8)],
)
def test_parameters_come_once_unless_they_stay(mode: Mode, loads: int) -> None:
    """Beside the batches; state that is streamed comes as well."""
    assert counted(four_layers(*(mode,) * 4, places=STAGES))["P"] == loads + 4


def test_replicas_with_updates_on_the_host_prefetch_what_is_new() -> None:
    """No parameters are sent from device to device, and gradients to the host once."""
    found = counted(four_layers(*(Mode("kept"),) * 4, places=((0, 1),) * 4))
    assert (found["X"], found["R"], found["S"], found["P"]) == (4, 4, 4, 8 + 4)


def test_norms_go_around_in_the_order_of_notes() -> None:
    """From device to device as shards there are done, and back to those that update before."""
    one, two = (four_layers(places=STAGES, norms=norms) for norms in (False, True))
    assert counted(two)["N"] == 4
    assert counted(two)["X"] == counted(one)["X"] + 2


def test_a_round_asked_again_gives_the_same_program() -> None:
    """To the names of the copies before the first round and after the last."""
    made = PipelineRound(piped.drawn(Random(0)), piped.LINKS)
    assert made.program() == made.program()


@pytest.mark.parametrize("replicas", [3, 6])
def test_a_device_has_room_for_two_gradients_of_others(replicas: int) -> None:
    """However many replicas there are, beside those that others are added to."""
    task = synthetic.task("a", layers=1, batch=6)
    one = piped.piped(task, (0, 1), [tuple(range(replicas))], "1f1b")
    values = [value for own in PipelineRound(one, piped.LINKS).walk.values for value in own]
    held = Counter(value.space for value in values if value.name.startswith("o"))
    assert held[str(one.homes[0])] == max(held.values()) == 2


def test_a_tight_round_needs_less() -> None:
    """Where state comes for an update, it has the place of the gradients that came before it."""
    task = synthetic.task("a", layers=1, batch=2, param_bytes=1 << 20, boundary_bytes=1 << 10)
    one = piped.piped(task, (0, 1), [(0, 1)], "gpipe", [Mode("resident", "device-streamed")])
    slabs = [
        max(memory.slab_bytes for memory in PipelineRound(way, piped.LINKS).memory)
        for way in (one, replace(one, tight=True))
    ]
    assert slabs[0] - slabs[1] >= one.shards[0].grad_bytes
    prove(piped.planned(replace(one, tight=True)))


def made(seed: int, *, norms: bool = False, tight: bool = False) -> tuple[Small, DeviceRound]:
    """Some strategy for some task, laid out in the least room or in more; on the host as well, if
    that is tight."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 8), norms=norms)
    strategy = some_choice(case, rng)
    if tight:
        strategy = in_less(strategy, rng.choice([0, 0, rng.randint(1, 99)]))
    least = DeviceRound(strategy, case.links).device_bytes
    return case, DeviceRound(strategy, case.links, least + rng.choice([0, rng.randint(0, least)]))


def plan_of(case: Small, of: DeviceRound) -> Plan:
    """The round repeated, on a device that has just the bytes that it takes."""
    (memory,) = of.program().memory
    room = memory.slab_bytes + memory.reserve_bytes
    return lone(replace(case, device_bytes=room).problem, of)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_every_program_is_sound(seed: int, norms: bool, tight: bool) -> None:
    """Whatever the cuts, modes, block, microbatches and room, also on the host, whether or not
    updates wait for norms: no race, no overflow, right versions, honest times."""
    assert violations(plan_of(*made(seed, norms=norms, tight=tight))) == []


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 100))
def test_what_waits_on_the_host_fits_any_room_from_the_least_on(
    seed: int, norms: bool, percent: int
) -> None:
    """Every buffer is there, in full; with a byte less than the least nothing fits."""
    _, of = made(seed, norms=norms)
    least, apart = least_bytes(of.strategy), store(of.strategy)
    room = least + (apart.bytes - least) * percent // 100
    fits = fitted(of.strategy, room)
    assert fits
    found = store(fits)
    assert found.bytes <= room
    assert found.kept == apart.kept
    sizes = [sorted((b.name, b.bytes) for b in one.scratch) for one in (found, apart)]
    assert sizes[0] == sizes[1]
    assert fitted(of.strategy, least - 1) is None


@given(st.integers(0, 10**6), st.booleans())
def test_the_period_that_was_judged_is_the_program_s(seed: int, norms: bool) -> None:
    """Leaving out edges that others imply changes no time."""
    _, of = made(seed, norms=norms)
    assert of.program().period_us == of.period_us


@given(st.integers(0, 10**6), st.booleans())
def test_no_stream_is_busy_for_longer_than_the_period(seed: int, norms: bool) -> None:
    """And what shards add to a stream, each by itself, is what its ops take."""
    case, of = made(seed, norms=norms)
    busy: dict[str, int] = {}
    for item in of.entries:
        busy[str(item.stream)] = busy.get(str(item.stream), 0) + item.us
    assert Loads(case.links).us(of.strategy) == max(busy.values()) <= of.period_us


@given(st.integers(0, 10**6), st.booleans())
def test_the_slab_takes_no_more_than_there_is(seed: int, norms: bool) -> None:
    """Room beyond the least is used for loads ahead, and never exceeded."""
    _, of = made(seed, norms=norms)
    assert of.device_bytes <= of.room


@given(st.integers(0, 10**6))
def test_the_critical_cycle_lasts_a_period(seed: int) -> None:
    """Its ops follow each other without a gap, around the end of one round or more."""
    _, of = made(seed)
    state, orders = of.best
    us = [of.entries[at].us for at in state.cycle]
    assert sum(us) % of.period_us == 0
    assert orders.queues


def test_lumped_rounds_take_about_as_long() -> None:
    """Looked at with microbatches taken together, 9 of 10 strategies are within 3 %."""
    near = 0
    for seed in range(200):
        case, of = made(seed)
        lumped = DeviceRound(replace(of.strategy, lumped=True), case.links, of.room)
        near += abs(lumped.period_us - of.period_us) <= 0.03 * of.period_us
    assert near >= 180


LINKS = piped.LINKS
SIZE = 1 << 20
SEND, ADD = LINKS.send_us(SIZE), LINKS.add_us(SIZE)


def added(count: int, home: int) -> str:
    """The sum of so many devices at home, with the lower part of each sum in front."""
    held = {device: (device, str(device)) for device in range(count)}
    for to, other in joins(range(count), home):
        (first, low), (_, high) = sorted((held[to], held.pop(other)))
        held[to] = first, f"({low}+{high})"
    ((device, (_, text)),) = held.items()
    assert device == home
    return text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (4, "((0+1)+(2+3))"),
        (5, "(((0+1)+(2+3))+4)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (7, "(((0+1)+(2+3))+((4+5)+6))"),
        (11, "((((0+1)+(2+3))+((4+5)+(6+7)))+((8+9)+10))"),
    ],
)
def test_the_sum_is_the_same_wherever_its_home_is(count: int, text: str) -> None:
    """Halves of halves, by the order of the devices alone."""
    assert {added(count, home) for home in range(count)} == {text}


def test_homes_have_inner_devices_of_their_own() -> None:
    """Those that add for one home and send on only send for its neighbour."""
    inner = [{join.to for join in joins(range(8), home)} for home in range(8)]
    assert inner[0] == {0, 2, 4, 6}
    assert inner[1] == {1, 3, 5, 7}
    levels = [[join.other for join in joins(range(8), home)][4:6] for home in range(4)]
    assert sorted(device for level in levels for device in level) == list(range(8))


def test_neighbours_send_at_the_same_time() -> None:
    """Two at once, then one; each waits for the device that is done last."""
    tree, ends = joins(range(4), 0), dict.fromkeys(range(4), 0)
    assert tree == (Join(0, 1), Join(2, 3), Join(0, 2))
    assert sums([tree], [ends], [SIZE], LINKS) == [[SEND, SEND, SEND + ADD + SEND]]
    late = ends | {3: 1000}
    own = [SEND, 1000 + SEND, 1000 + SEND + ADD + SEND]
    assert sums([tree], [late], [SIZE], LINKS) == [own]


def test_a_device_sends_what_is_ready_first() -> None:
    """Of two trees that one device sends for, and what waits for that in the second."""
    trees, ends = [joins(range(2), 0), joins(range(2), 0)], [{0: 0, 1: 10}, {0: 5000, 1: 0}]
    assert sums(trees, ends, [SIZE, SIZE], LINKS) == [[2 * SEND], [5000]]


def test_what_is_sent_down_takes_turns_at_each_device() -> None:
    """The home sends to the far half first, whose device goes on meanwhile."""
    found = spread(joins(range(4), 0), 0, SIZE, LINKS)
    assert found == {0: 0, 2: SEND, 1: 2 * SEND, 3: 2 * SEND}


def test_parts_are_needed_the_sooner_the_further_they_have_to_go() -> None:
    """As late as that, all are added up in time, and any later they are not."""
    tree = joins(range(5), 3)
    due = needed(tree, 3, 10_000, SIZE, LINKS)
    assert sums([tree], [due], [SIZE], LINKS)[0][-1] + ADD == 10_000
    for device in range(5):
        (found,) = sums([tree], [due | {device: due[device] + 1}], [SIZE], LINKS)
        assert found[-1] + ADD == 10_001


CASES = {
    "two shards of a device": (
        "1f1b",
        ((0,), (1,), (1,)),
        "F0.0@0 F0.1@0 F1.0@1 B2.0@1 B1.0@1 F1.1@1 B0.0@0 "
        "B2.1@1 B1.1@1 B0.1@0 U2.0@1 U1.0@1 U0.0@0",
    ),
    "replicas": (
        "gpipe",
        ((0, 1),),
        "B0.0@0 B0.1@1 R0.0@0 U0.0@0",
    ),
    "halves": (
        "zero-bubble",
        ((0,), (1,)),
        "F0.0@0 F0.1@0 I1.0@1 I1.1@1 B0.0@0 W1.0@1 W1.1@1 B0.1@0 U1.0@1 U0.0@0",
    ),
}


def shown(case: str, *, norms: bool = False) -> str:
    """The turns of a case with layers all alike, in two microbatches."""
    named, places, _ = CASES[case]
    layers = len(places)
    task = synthetic.task("a", layers=layers, batch=2, heterogeneous=False, norms=norms)
    one = piped.piped(piped.halving(task), tuple(range(layers + 1)), places, named)
    return " ".join(f"{t.kind}{t.shard}.{t.number}@{t.device}" for t in turns(one, piped.LINKS))


@pytest.mark.parametrize("case", CASES)
def test_turns_begin_when_they_can(case: str) -> None:
    """Passes by their begin, and each shard's additions and update when no pass waits for them."""
    assert shown(case) == CASES[case][2]


def test_updates_wait_for_all_norms() -> None:
    """Norms are noted as shards are done; then all shards are updated, from the first on."""
    assert shown("two shards of a device", norms=True).split()[-6:] == (
        ["N2.0@1", "N1.0@1", "N0.0@0", "U0.0@0", "U1.0@1", "U2.0@1"]
    )


def test_parameters_that_others_read_change_when_all_are_done() -> None:
    """The owner of tied parameters is updated behind its own backwards and the holders' last."""
    made = piped.halving(synthetic.task("a", layers=2, batch=4))
    tied = structs.replace(made, ties=((0, 1),), tie_bytes=(1024,))
    one = piped.piped(tied, (0, 1, 2), ((0,), (1,)), "zero-bubble")
    assert [f"{t.kind}{t.shard}.{t.number}" for t in turns(one, piped.LINKS)][-4:] == (
        ["B0.3", "W1.3", "U1.0", "U0.0"]
    )


def test_what_comes_and_goes_is_updated_at_once() -> None:
    """Its bytes are needed by others; what stays is updated when its device has done its passes."""
    told = CASES["two shards of a device"][:2]
    task = synthetic.task("a", layers=3, batch=2, heterogeneous=False)
    found = {}
    for params in ("kept", "resident"):
        modes = [Mode(params, "device")] * 3  # type: ignore[arg-type]
        one = piped.piped(task, (0, 1, 2, 3), told[1], told[0], modes)
        line = [f"{t.kind}{t.shard}.{t.number}" for t in turns(one, piped.LINKS)]
        found[params] = line.index("U2.0") < line.index("B1.1")
    assert found == {"kept": True, "resident": False}
