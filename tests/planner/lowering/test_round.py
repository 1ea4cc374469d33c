"""Rounds on several devices: turns, sums of replicas, and the strategies that they come from."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import piped, synthetic
from support.apart import lone
from support.mutations import mutants
from support.oracle import harm
from support.strategies import Loads, Small, in_less, small, some_choice

from planner import Infeasible, Problem, build
from planner.inputs.problem import Policy
from planner.lowering import PipelineRound, PipelineStrategy
from planner.lowering.evaluation import evaluating
from planner.lowering.host_bytes import fitted, least_bytes, store
from planner.lowering.round import DeviceRound
from planner.lowering.trees import joins
from planner.lowering.turns import turns
from planner.rounds import dispatched, shortest
from planner.rounds.hydra import HydraStrategy
from planner.rounds.slab import bytes_alive
from planner.search.searches import baselines
from planner.shards import Mode
from planner.shards.costs import microbatch_costs
from planner.shards.shard_cost import Links
from planner.timetable.assign_jobs import jobs_of
from plans import InvalidPlan, prove, violations
from plans.schema import Plan
from plans.timing import duration_us
from profiles.errors import FormatError
from profiles.schema import Evaluation, Task

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_any_way_is_sound(first: int) -> None:
    """Whatever the cuts, places of shards, order and modes, and the room that lives are stretched
    in: the checker finds nothing."""
    for seed in range(first, first + 10):
        one = piped.drawn(Random(seed))
        least = PipelineRound(one, piped.LINKS).device_bytes
        prove(piped.planned(one, room=least * (seed % 3)))


@pytest.mark.parametrize("seed", range(3))
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


def replicated(*modes: Mode, layers: int = 6, sent_us: int = 600) -> PipelineStrategy:
    """Layers of a millisecond on three devices each, which send parameters for so long."""
    task = synthetic.task("a", layers=layers, heterogeneous=False, forward_us=300, batch=3)
    size = (sent_us - 20) * 1000
    own = [structs.replace(one, param_bytes=size, grad_bytes=size) for one in task.layers]
    task = structs.replace(task, layers=tuple(own))
    cuts, places = tuple(range(layers + 1)), ((0, 1, 2),) * layers
    return piped.piped(
        task, cuts, places, "breadth", modes or (Mode("resident", "device"),) * layers
    )


def test_replicas_compute_while_sums_of_others_come() -> None:
    """An addition whose sum is not there yet lets the next passes go before it."""
    one = replicated(layers=8, sent_us=600)
    made = PipelineRound(one, piped.LINKS, 1 << 30)
    chained = shortest(made.draft, dispatched(replace(made.draft, free=frozenset())))
    assert made.period_us < 0.97 * chained[0].period_us
    prove(piped.planned(one, room=1 << 30))


def test_new_parameters_go_to_others_behind_gradients() -> None:
    """Those of shards whose forwards come first before others; they are wanted in the next round,
    sums of gradients at once."""
    made = PipelineRound(replicated(), piped.LINKS)
    rank = {
        item.name.number: made.draft.rank[at]
        for at, item in enumerate(made.entries)
        if item.name.kind == "X" and "param" in item.writes
    }
    assert [*rank] != sorted(rank)  # the last ones are made first
    assert sorted(rank, key=rank.__getitem__) == sorted(rank)
    assert min(rank.values()) >= len(made.entries)


def test_what_comes_for_a_pass_of_replicas_may_come_during_the_one_before() -> None:
    """Whatever is added between the two: parameters, sums of others, and the first state."""
    streamed = (*(Mode("streamed", "device-streamed"),) * 5, Mode("kept", "device-streamed"))
    walk = PipelineRound(replicated(*streamed), piped.LINKS).walk
    for order, values in zip(walk.stays.turns, walk.values, strict=True):
        passes = {(t.kind, t.shard): at for at, t in enumerate(order) if t.kind in "FB"}
        came = {value.name: value.first for value in values}
        for k in range(4):
            assert came[f"s{k}.param.1"] <= passes["B", k + 1]
        for at, turn in enumerate(order):
            before = [place for place in passes.values() if place < at]
            if turn.kind == "R" and turn.number == 0:
                assert came[f"o{turn.shard}.0"] <= max(before)
        first = next(at for at, turn in enumerate(order) if turn.kind == "U")
        before = [place for place in passes.values() if place < first]
        assert came[f"s{order[first].shard}.state"] <= max(before)


def test_a_round_with_room_for_longer_lives_waits_for_less() -> None:
    """Where no value needs the bytes of the one before at once."""
    one = replicated(*(Mode("streamed"),) * 5, Mode("kept"))
    least = PipelineRound(one, piped.LINKS)
    rooms = [least.device_bytes, 2 * least.device_bytes]
    near, far = (PipelineRound(one, piped.LINKS, room) for room in rooms)
    assert near.device_bytes <= rooms[0]
    assert rooms[0] < far.device_bytes <= rooms[1]
    assert far.period_us < 0.95 * least.period_us


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


def test_packed_activations_have_bytes_only_while_they_come_and_go() -> None:
    """Up and down eight shards, microbatch after microbatch of each: those of a few are there at a
    time, whatever the number of shards."""
    task = synthetic.task("a", layers=8, param_bytes=1 << 10, boundary_bytes=1 << 20)
    packs, last = Mode("kept", "host", "offload"), Mode("kept")
    modes = (*[packs] * 7, last)
    one = piped.piped(task, tuple(range(9)), [(0, 1)] * 8, "breadth", modes)
    for values in PipelineRound(one, piped.LINKS).walk.values:
        packed = [value for value in values if value.role == "saved"]
        alive = max(bytes_alive(packed, 1 + max(value.last for value in values)))
        assert alive <= 2 * 2 * max(value.bytes for value in packed)
    prove(piped.planned(one))


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


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_every_program_is_sound(seed: int, norms: bool, tight: bool) -> None:
    """Whatever the cuts, modes, block, microbatches and room, also on the host, whether or not
    updates wait for norms: no race, no overflow, right versions, honest times."""
    assert violations(plan_of(*made(seed, norms=norms, tight=tight))) == []


@settings(max_examples=20)
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


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.booleans())
def test_the_period_that_was_judged_is_the_program_s(seed: int, norms: bool) -> None:
    _, of = made(seed, norms=norms)
    assert of.program().period_us == of.period_us


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.booleans())
def test_no_stream_is_busy_for_longer_than_the_period(seed: int, norms: bool) -> None:
    """And what shards add to a stream, each by itself, is what its ops take."""
    case, of = made(seed, norms=norms)
    busy: dict[str, int] = {}
    for item in of.entries:
        busy[str(item.stream)] = busy.get(str(item.stream), 0) + item.us
    assert Loads(case.links).us(of.strategy) == max(busy.values()) <= of.period_us


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
    assert {added(count, home) for home in range(count)} == {text}


CASES = {
    "two shards of a device": (
        "1f1b",
        ((0,), (1,), (1,)),
        "F0.0@0 F0.1@0 F1.0@1 B2.0@1 B1.0@1 F1.1@1 B0.0@0 "
        "B2.1@1 B1.1@1 B0.1@0 U2.0@1 U1.0@1 U0.0@0",
    ),
    "replicas": ("gpipe", ((0, 1),), "B0.0@0 B0.1@1 R0.0@0 U0.0@0"),
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


def chain(name: str, steps: int, evaluation: Evaluation | None, seed: int = 0) -> Task:
    """A small chain of layers, in microbatches of one or more."""
    made = synthetic.task(
        name, layers=4, seed=seed, steps=steps, batch=4, param_bytes=4096, boundary_bytes=2048
    )
    return structs.replace(made, evaluation=evaluation)


def asked(*tasks: Task, devices: int = 1, kib: int = 64) -> Problem:
    profile = synthetic.profile(*tasks, usable_bytes=kib << 10)
    return Problem.of(profile, devices=devices, device_bytes=None, host_bytes=None)


def planned(problem: Problem, policy: Policy = "gantry") -> Plan:
    return build(problem, profile_sha256="0" * 64, policy=policy, seconds=10)


def course(plan: Plan, task: str) -> list[tuple[bool, int]]:
    """Of a task's segments: whether they evaluate, and how many rounds."""
    programs = {program.name: program for program in plan.programs}
    own = [(programs[s.program], s.rounds) for s in plan.segments]
    return [(program.evaluates, rounds) for program, rounds in own if task in program.tasks]


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_an_evaluation_follows_every_so_many_steps(policy: Policy) -> None:
    """On the device of the segment before it; none follows the last steps, which are too few."""
    tasks = (chain("a", 7, Evaluation(3, 2)), chain("b", 4, None, seed=1))
    plan = planned(asked(*tasks), policy)
    pieces = course(plan, "a")
    told = "".join(rounds * ("e" if evaluates else "t") for evaluates, rounds in pieces)
    assert told == "tttee" + "tttee" + "t"
    assert sum(rounds for _, rounds in course(plan, "b")) == 4
    programs = {program.name: program for program in plan.programs}
    for segment in plan.segments:
        program = programs[segment.program]
        assert segment.end_us - segment.start_us == duration_us(program, segment.rounds)


def test_short_segments_and_evaluations_cut_alike() -> None:
    problem = asked(chain("a", 6, Evaluation(3, 2)))
    plan = planned(replace(problem, segment_steps=2))
    train, judge = (False, 2), (True, 2)
    assert course(plan, "a") == [train, (False, 1), judge, train, (False, 1), judge]


@pytest.mark.parametrize(
    ("steps", "every", "most"), [(10**7, 2, None), (1 << 50, 1 << 49, 3), (1 << 50, 2, None)]
)
def test_too_many_segments_are_refused(steps: int, every: int, most: int | None) -> None:
    """At once and with both numbers, before anything is listed."""
    problem = replace(asked(chain("a", steps, Evaluation(every, 1))), segment_steps=most)
    with pytest.raises(FormatError, match=r"^a: .* segments, a plan has 100000 at most; evaluate"):
        planned(problem)


def test_what_was_owed_comes_first() -> None:
    """A task that goes on after a step whose evaluation is missing begins with it."""
    problem = asked(chain("a", 5, Evaluation(3, 2, owed=True)))
    plan = planned(replace(problem, done={"a": 3}))
    assert course(plan, "a") == [(True, 2), (False, 3), (True, 2), (False, 2)]


def test_evaluations_leave_no_gaps() -> None:
    """On one device everything follows without a pause, exactly timed; and what the placement
    thinks of as a task's time is no less than what it takes."""
    tasks = (chain("a", 6, Evaluation(1, 4)), chain("b", 6, None, seed=1))
    problem = asked(*tasks)
    plan = planned(problem)
    times = sorted((segment.start_us, segment.end_us) for segment in plan.segments)
    assert [start for start, _ in times] == [0, *(end for _, end in times[:-1])]
    programs = {program.name: program for program in plan.programs}
    (a,), (b,) = baselines(problem).ways  # for their names
    a = replace(a, programs=(programs["a"],), evaluates=(programs["a.eval"],))
    works = jobs_of(problem, [a, replace(b, programs=(programs["b"],))])
    assert sum(work.us(0, work.rounds) for work in works) >= plan.prediction.makespan_us


@settings(max_examples=8)
@given(seed=st.integers(0, 50), kib=st.integers(12, 60), cuts=st.sets(st.integers(1, 3)))
def test_the_shortest_that_fits_is_sound(seed: int, kib: int, cuts: set[int]) -> None:
    """Whatever fits a device is a program within its bytes; the rest says what would do."""
    (costs, *_) = microbatch_costs(chain("a", 2, Evaluation(1, 2), seed))
    strategy = HydraStrategy(costs, (0, *sorted(cuts), 4), (Mode(),) * (len(cuts) + 1), 1)
    links = Links.of(synthetic.machine(usable_bytes=1 << 20).devices[0])
    try:
        program = evaluating(strategy, links, kib << 10)
    except Infeasible as error:
        program = evaluating(strategy, links, error.smallest)
        with pytest.raises(Infeasible):
            evaluating(strategy, links, error.smallest - 1)
        kib = error.smallest
    (memory,) = program.memory
    assert memory.slab_bytes + memory.reserve_bytes <= kib << 10
    assert program.evaluates
    assert not program.leave


@pytest.mark.parametrize("seed", range(2))
def test_what_can_be_trained_can_be_evaluated(seed: int) -> None:
    """Where batches are large too, of which training has one at a time on a small device."""
    task = chain("a", 2, Evaluation(1, 2), seed)
    batches = (structs.replace(size, batch_bytes=1 << 16) for size in task.batches)
    task = structs.replace(task, batches=tuple(batches))
    bare = structs.replace(task, evaluation=None)
    with pytest.raises(Infeasible) as caught:
        planned(asked(bare).alike(device_bytes=1))
    plan = planned(asked(task).alike(device_bytes=caught.value.smallest))
    assert {program.name for program in plan.programs} == {"a", "a.eval"}


def test_every_harmful_change_is_refused(record_property: Callable[[str, object], None]) -> None:
    """The oracle, which shares no code with the checker, says which changes do harm."""
    plan = planned(asked(chain("a", 4, Evaluation(2, 2)), kib=40))
    assert harm(plan, orders=3) is None
    harmful, missed = 0, []
    for mutant in mutants(plan, seed=1, limit=50):
        why = harm(mutant.plan)
        harmful += bool(why)
        if why and not violations(mutant.plan):
            missed.append(f"{mutant.name}: {why}")
    record_property("kill rate", f"{harmful - len(missed)}/{harmful}")
    assert harmful > 25
    assert not missed
