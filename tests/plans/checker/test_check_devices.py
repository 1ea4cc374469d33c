"""Programs on several devices: whatever an order makes is sound, and what is changed in it is
refused by the name of the op that goes wrong."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import count

import pytest
from msgspec import structs
from support import handmade, piped, synthetic
from support.edits import (
    Edit,
    change,
    drop,
    edgeless,
    find,
    reading,
    refused,
    rows,
    with_phase,
    with_round,
    with_task,
    writing,
)
from support.mutations import STRICT, bites, mutants
from support.oracle import harm
from support.passes import Where, breadth, greedy, in_turns, spread
from support.searches import QUICK

from planner.builder import build
from planner.inputs import Layout
from planner.lowering import PipelineStrategy, executable
from planner.lowering.trees import Join
from planner.orders import Order, Places
from planner.search.shapes import renamed
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from plans.additions import additions
from plans.checker import alike, check
from plans.checker.check import violations
from plans.schema import Plan
from profiles.schema import Evaluation

RESIDENT = Mode("resident", "device", "recompute")
SPILLING = Mode("streamed", "host", "offload")
KEPT = Mode("kept", "device-streamed", "saved")
MICROBATCHES = 4

# Nor does the oracle see in which order gradients are added, or by which name bytes are read.
HARMLESS = re.compile(
    STRICT.pattern + "|with microbatches below|finds gradients added as|nothing was written to it"
)


def plan(
    places: Places,
    mode: Mode = RESIDENT,
    order: Callable[[Where], Order] = greedy,
    *,
    norms: bool = False,
    ties: tuple[tuple[int, ...], ...] = (),
    homes: tuple[int, ...] = (),
) -> Plan:
    """A task of few bytes, trained in this way by shards of two layers. homes: the device that owns
    each shard, where it is said."""
    last, sizes = len(places) - 1, {"param_bytes": 512, "boundary_bytes": 256}
    made = synthetic.task("a", layers=2 * len(places), batch=MICROBATCHES, norms=norms, **sizes)
    made = structs.replace(piped.halving(made), ties=ties, tie_bytes=(256,) * len(ties))
    modes = (*[mode] * last, replace(mode, activations="recompute"))
    passes = executable(order(spread(places, MICROBATCHES)), last, range(1, last + 1))
    cuts, layout = tuple(range(0, 2 * last + 3, 2)), Layout((1,) * len(passes))
    costs = TaskCosts(made, 1, apart=bool(ties))
    way = PipelineStrategy(costs, cuts, modes, passes, layout, "any")
    if homes:
        vars(way)["homes"] = homes
    return piped.planned(way)


PIPE = ((0,), (1,), (0,), (1,))
FRONT = ((0, 1), (2,))
REAR = ((0,), (1, 2, 3))
EVERYWHERE = ((0, 1, 2),) * 2

SOUND = {
    "breadth": lambda: plan(PIPE, order=breadth),
    "1f1b": lambda: plan(((0,), (1,), (2,)), order=in_turns),
    "interleaved, spilling": lambda: plan(PIPE, SPILLING),
    "front": lambda: plan(FRONT, norms=True, homes=(1, 2)),
    "rear": lambda: plan(REAR, KEPT, homes=(0, 3)),
    "data parallel": lambda: plan(EVERYWHERE, homes=(1, 2)),
    "data parallel on the host": lambda: plan(EVERYWHERE, SPILLING),
    "norms": lambda: plan(PIPE, SPILLING, norms=True),
    "halves": lambda: plan(REAR, order=lambda where: greedy(where, halves=(1,))),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_the_checker_passes_trains_the_right_numbers(name: str) -> None:
    """Executed on bytes, in several orders."""
    assert harm(SOUND[name](), orders=3) is None


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_passes_makes_a_sound_plan(seed: int) -> None:
    """Any device next, any shard next: with its copies and edges, it is proven."""
    rng = random.Random(seed)
    places = tuple(tuple(rng.sample(range(3), rng.randint(1, 3))) for _ in range(3))
    mode = rng.choice([RESIDENT, SPILLING, KEPT])
    made = plan(places, mode, lambda where: greedy(where, rng), norms=bool(seed % 2))
    assert violations(made) == []


@pytest.mark.parametrize("name", ["front", "rear", "data parallel", "data parallel on the host"])
def test_every_harmful_mutant_is_refused(name: str) -> None:
    """Of one in each few of all changes, as the oracle judges them."""

    def excused(_: Plan, found: list[str]) -> bool:
        return all(HARMLESS.search(line) for line in found)

    assert bites(mutants(SOUND[name](), seed=1, limit=38), harm, excused).total() > 15


def moved(made: Plan, op_id: str, device: int) -> Plan:
    """The op on another device, with that device's buffers of the same names."""
    op = find(made, op_id)
    _, stream = op.stream.split(".")
    there = {b.name for b in made.programs[0].buffers}

    def other(roles: dict[str, str]) -> dict[str, str]:
        names = {role: f"{device}{name[1:]}" for role, name in roles.items()}
        return {role: name if name in there else roles[role] for role, name in names.items()}

    own = {"reads": other(op.reads), "writes": other(op.writes)}
    return change(made, op_id, stream=f"{device}.{stream}", **own)


def exchanged(made: Plan, one: str, other: str) -> Plan:
    """Two ops of one stream in each other's place, each under the other's name."""
    (program,) = made.programs
    ops = list(program.round)
    i, j = (next(n for n, op in enumerate(ops) if op.id == name) for name in (one, other))
    after = tuple({*ops[i].after, *ops[j].after})  # what either waited for
    swapped = [structs.replace(ops[n], after=after, id=ops[m].id) for n, m in ((i, j), (j, i))]
    ops[j], ops[i] = swapped
    return with_round(made, ops)


# What is said of a changed plan, by the plan.
CHANGES: dict[str, dict[str, Edit]] = {
    "front": {
        "…no order between it and a.s1.B0": lambda p: edgeless(p, "a.s1.B0", "a.x1.X0"),
        # even where it finds everything, as random numbers and changing buffers rely on it
        "a.s0.B0: runs on 0.compute, but a.s0.F0 on 1.compute": lambda p: moved(p, "a.s0.F0", 1),
        "a.s1.B2…reads x from 2/x1.2": lambda p: drop(p, "a.x1.X2"),
        "a.x1.X2…expected a.x1 of microbatch 2": lambda p: reading(p, "a.x1.X2", x="0/y1.0"),
        # where the first one still waits to be sent
        "a.x1.X0…no order between it and a.s0.F2": lambda p: writing(p, "a.s0.F2", y="0/y1.0"),
        "a.s0.B1…reads dy from 1/d1.0": lambda p: drop(p, "a.dx1.X1"),
        "a.s0.B2…it holds a.dx1 of step 0, microbatch 0": (
            lambda p: reading(p, "a.s0.B2", dy="0/d1.0")
        ),
        "a.s0.N0…with microbatches 0..3": lambda p: drop(p, "a.s0.R0"),
        "a.s0.F0…expected a.s0 param version 1 but it holds a.s0 param version 0": (
            lambda p: drop(p, "a.s0.X1")
        ),
        "a.s0.X1…no order between it and a.s0.F2": lambda p: edgeless(p, "a.s0.F0", "a.s0.X1@-1"),
    },
    "data parallel": {
        "a.s0.U0…expected a.s0 grad of step 0 with microbatches 0..3": lambda p: drop(p, "a.s0.R1"),
        "a.s0.U0: finds gradients added as (0+3)+((1)+(2)), expected ((0+3)+(1))+(2)": (
            lambda p: exchanged(p, "a.s0.R0", "a.s0.R1")
        ),
        "a.s0.U0…expected a buffer of space '2'": lambda p: moved(p, "a.s0.U0", 2),
    },
    "data parallel on the host": {
        "a.s1.R1…no order between it and a.s1.X1": lambda p: edgeless(p, "a.s1.R1", "a.s1.X1")
    },
    "rear": {"a.s0.B1…expected a buffer of space '1'": lambda p: moved(p, "a.s0.B1", 1)},
    "halves": {
        "a.s1.W1: runs on 3.compute, but a.s1.I1 on 2.compute": lambda p: moved(p, "a.s1.W1", 3)
    },
}


@pytest.mark.parametrize(("name", "said"), rows(CHANGES))
def test_the_op_that_goes_wrong_is_named(name: str, said: str) -> None:
    refused(CHANGES[name][said](SOUND[name]()), said)


def test_what_tied_layers_hand_down_is_sent() -> None:
    """To the device of the next of them; a send less, or of what nobody handed, is refused."""
    made = plan(((0,), (1,), (2,), (1,)), KEPT, ties=((0, 2, 6),))
    assert violations(made) == []
    sends = [op.id for op in made.programs[0].round if ".tie" in op.id]
    assert sorted(sends) == [f"a.tie1.X{m}" for m in range(MICROBATCHES)]
    lines = violations(drop(made, "a.tie1.X2"))
    assert [line for line in lines if line.startswith("a.s0.B2 round 0: reads tie")]
    (program,) = made.programs
    op = find(made, "a.tie1.X2")
    for other, text in (
        (structs.replace(op, id="a.tie2.X2"), "s2 hands no gradients of tied layers down"),
        (structs.replace(op, id="a.tie1.S2", stream="1.d2h"), "is sent (X) from device to device"),
    ):
        ops = [other if one.id == op.id else one for one in program.round]
        lines = violations(with_phase(made, program, "round", ops))
        assert [line for line in lines if line.startswith(other.id) and text in line], lines


def test_an_evaluation_sends_boundaries_and_nothing_back() -> None:
    """Forwards on the devices that train the shards; gradients have no place there."""
    made = with_task(handmade.pipeline(), evaluation=Evaluation(2, 1))
    judge = structs.replace(made.programs[0], name="solo.eval", evaluates=True)
    judged = structs.replace(made, programs=(*made.programs, judge))
    refused(judged, "a.dx1.X0: only F, P and X of")


@cache
def twins() -> Plan:
    """Three tasks of one shape, the names of which are parts of each other and of buffers'."""
    task = synthetic.task("t", layers=4, seed=1, batch=2, param_bytes=1 << 20)
    tasks = [structs.replace(task, name=name) for name in ("t", "t-t", "s0")]
    problem = synthetic.problem(*tasks, usable_bytes=5 << 20)
    return build(problem, profile_sha256="0" * 64, limits=QUICK)


def test_any_change_of_one_of_them_is_found(monkeypatch) -> None:
    """Each op of each twin without what it waits for: the same violations as where all programs
    are proven by themselves."""
    plan = twins()
    changed = []
    for at, program in enumerate(plan.programs):
        for place, op in enumerate(program.round):
            if op.after:
                ops = list(program.round)
                ops[place] = structs.replace(op, after=())
                other = structs.replace(program, round=tuple(ops))
                programs = (*plan.programs[:at], other, *plan.programs[at + 1 :])
                changed.append(structs.replace(plan, programs=programs))
    changed = changed[::21]
    found = [violations(one) for one in changed]
    assert sum(map(bool, found)) > len(found) // 2
    serial = count()
    monkeypatch.setattr(check, "likeness", lambda view: next(serial))
    assert found == [violations(one) for one in changed]


def test_a_task_called_like_a_stream_is_like_no_other() -> None:
    plan = twins()
    tasks = {task.name: task for task in plan.tasks}
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    likes = set()
    for name in ("0", "1", "host"):
        program = renamed(plan.programs[0], name)
        own = {name: structs.replace(tasks["t"], name=name)}
        mine = {
            name + key[1:]: structs.replace(buffer, name=name + key[1:])
            for key, buffer in host.items()
            if key.startswith("t.")
        }
        likes.add(alike.likeness(check.view(program, own, mine)))
    assert len(likes) == 3


def test_likeness_sees_sizes_and_places() -> None:
    """Another offset, a longer buffer, or another shard makes another program."""
    plan = twins()
    tasks = {task.name: task for task in plan.tasks}
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    views = [check.view(program, tasks, host) for program in plan.programs]
    likes = [alike.likeness(view) for view in views]
    assert len(set(likes)) == 1
    first, *others = plan.programs[0].buffers
    moved = structs.replace(first, offset=first.offset + 256)
    program = structs.replace(plan.programs[0], buffers=(moved, *others))
    assert alike.likeness(check.view(program, tasks, host)) != likes[0]
    mine = next(name for name in host if name.startswith(f"{program.tasks[0]}."))
    wider = host | {mine: structs.replace(host[mine], bytes=host[mine].bytes + 256)}
    assert alike.likeness(check.view(plan.programs[0], tasks, wider)) != likes[0]


IN_TURN, IN_HALVES = "(((0)+(1))+(2))+(3)", "((0)+(1))+((2)+(3))"


def trees(heads: Sequence[int]) -> Iterator[tuple[Join, ...]]:
    """All ways to add up the sums of these devices on device 0, two at a time."""
    if len(heads) == 1:
        yield ()
    for to in heads:
        for other in heads:
            if other and other != to:
                for rest in trees([head for head in heads if head != other]):
                    yield (Join(to, other), *rest)


def test_four_replicas_are_added_in_turn_or_in_halves() -> None:
    """Any other order, though it counts every replica once, is refused by the update."""
    made = piped.piped(synthetic.task("a", layers=1, batch=4), (0, 1), [tuple(range(4))], "gpipe")
    vars(made)["homes"] = (0,)
    seen = set()
    for tree in trees(range(4)):
        vars(made)["added"] = (tree,)
        plan = piped.planned(made)
        (told,) = additions(plan)["a"]
        found = violations(plan)
        seen.add(told.sum)
        assert (not found) == (told.sum in (IN_TURN, IN_HALVES)), (tree, found)
        assert all(line.startswith("a.s0.U0: finds gradients added as (") for line in found)
    assert seen > {IN_TURN, IN_HALVES}
