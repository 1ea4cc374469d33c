"""Tied weights in several shards: from the profile to the bits of plain loops."""

from collections.abc import Callable
from functools import cache

import pytest

pytest.importorskip("torch")

import torch
from msgspec import structs
from support import apart, quick, tied
from support.plain import Plain, train
from support.quick import built, least
from support.rewrites import halved
from support.same import assert_same
from support.slabs import bound

from executor import run
from executor.driver import Result
from executor.errors import MismatchError
from executor.workload.task import Task
from planner import Problem
from planner.shards.modes import Mode
from planner.shards.ties import separable_ties
from plans import prove
from plans.schema import Plan
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("quick", "untimed")

WAYS = ("plain", "three", "unused", "alone", "clipped", "masters", "autocast", "scaled")
MODES = (
    Mode("streamed", "host", "recompute"),
    Mode("resident", "device", "saved"),
    Mode("kept", "host", "offload"),
    Mode("streamed", "device-streamed", "offload"),
)


def tasks(way: str) -> list[Task]:
    made: Callable[[], list[Task]] = getattr(tied, way)
    return made()


@cache
def measured(way: str, microbatches: int | None = None) -> Profile:
    return quick.measured(tasks(way)[0], microbatches)


@cache
def oracle(way: str, microbatches: int) -> Plain:
    return train(tasks(way)[0], microbatches)


def cut(way: str, mode: Mode, microbatch: int, cuts: tuple[int, ...], block: int = 9) -> Plan:
    """A plan that trains the task in this way, in the least memory."""
    asked = Problem.of(measured(way), devices=1, device_bytes=None, host_bytes=None)
    return apart.planned(asked, apart.strategy(asked.tasks[0], mode, microbatch, cuts, block))


def trained(way: str, plan: Plan) -> Result:
    """The plan's run, once it is certain that it trained what a plain loop trains."""
    done = run(plan, tasks(way))
    assert_same(plan, tasks(way), done, lambda task, count: oracle(way, count))
    return done


@pytest.mark.parametrize("recomputed", [1, 2])
def test_some_microbatches_pack_and_others_recompute(recomputed: int) -> None:
    """In one shard, with random numbers of a forward that runs twice, or once."""
    mode = Mode("streamed", "device-streamed", "offload", recomputed=recomputed)
    plan = cut("three", mode, 2, (0, 1, 2, 3, 4, 5))
    packing = [
        op.id for op in plan.programs[0].round if op.name.kind == "F" and "saved" in op.writes
    ]
    assert len(packing) == sum(3 - recomputed for s in plan.tasks[0].shards if s.recomputed)
    trained("three", plan)


# Each way in two of the modes, each mode with every other way.
@pytest.mark.parametrize(
    ("way", "mode"), [(way, (n + 2 * k + n // 4) % 4) for n, way in enumerate(WAYS) for k in (0, 1)]
)
def test_bits_of_the_plain_loop(way: str, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer a shard: any precision, clipped or not, any activations and updates, one
    microbatch or three, in no more memory than was reserved."""
    microbatch = 2 + 4 * (mode // 2)
    plan = cut(way, MODES[mode], microbatch, (0, 1, 2, 3, 4, 5))
    assert plan.tasks[0].tie_bytes > 0
    ends = bound(monkeypatch, plan)
    done = trained(way, plan)
    memory = plan.programs[0].memory[0]
    assert ends == [memory.slab_bytes]
    assert done.peak_bytes[0] <= memory.slab_bytes + memory.reserve_bytes


@pytest.mark.parametrize(
    ("way", "mode", "late"),
    [("three", 0, True), ("alone", 2, False), ("masters", 1, True), ("autocast", 0, True),
     ("scaled", 2, False)],
)  # fmt: skip
def test_backwards_in_two_parts(way: str, mode: int, late: bool) -> None:
    """The shared weight's gradient goes down with the first parts; the rest comes any time later,
    with the scale of a loss, in low precision, and beside parameters that are cast."""
    made = cut(way, MODES[mode], 2, (0, 1, 2, 3, 4, 5))
    plan = halved(made, late=late, left_bytes=1 << 16)
    prove(plan)
    assert any(".W" in op.id for op in plan.programs[0].round)
    trained(way, plan)


@pytest.mark.parametrize(
    ("cuts", "block"),
    [((0, 1, 3, 4, 5), 0), ((0, 3, 5), 1), ((0, 2, 5), 2), ((0, 1, 2, 5), 3), ((0, 3, 5), 0),
     ((0, 1, 3, 4, 5), 3)],
)  # fmt: skip
def test_any_cuts_and_any_block(cuts: tuple[int, ...], block: int) -> None:
    """Users of the weight share shards, with the owner or each other; microbatches of a block go
    one by one."""
    trained("three", cut("three", MODES[1 + block % 2], 2, cuts, block))


def test_built_plans_train_the_same() -> None:
    """In the smallest budget there is and in one that is not much larger, the weight crosses
    shards and every bit is the plain loop's."""
    tight = least(measured("three"))
    roomy = built(measured("three"), tight.devices[0].budget_bytes * 3 // 2)
    for plan in (tight, roomy):
        assert len(plan.tasks[0].shards) > 1
        trained("three", plan)


@pytest.mark.parametrize("way", ["modules", "graph"])
def test_an_embedding_leaves_its_weight_to_the_head_under_autocast(way: str) -> None:
    """Only the head casts it, also where the embedding is a piece of the model's own code or of its
    graph: they may be in shards of their own, with the bits of the plain loop."""
    made = measured(way, 3).tasks[0]
    assert made.cut is not None
    assert made.cut.how == way
    assert all(made.tie_bytes)
    plan = least(measured(way, 3))
    assert len(plan.tasks[0].shards) > 1
    trained(way, plan)


def test_evaluations_share_the_weight_too() -> None:
    """In the smallest budget there is, with the model as trained."""
    plan = least(measured("judged", 3))
    assert plan.tasks[0].tie_bytes
    done = trained("judged", plan)
    (task,), model, count = tasks("judged"), done.model("t").eval(), plan.tasks[0].microbatches
    inputs, targets = (part.chunk(count) for part in tied.batches(0))
    with torch.no_grad():
        losses = [task.loss(model(x), y) / count for x, y in zip(inputs, targets, strict=True)]
    assert done.val_losses == {"t": {3: sum(map(float, losses))}}


def test_a_weight_that_two_layers_cast_is_not_cut() -> None:
    """Under autocast layers share what they cast, whose gradients are added before they are cast
    back: such layers stay in one shard."""
    (task,) = measured("twice_cast", 3).tasks
    assert (task.ties, task.tie_bytes) == (((0, 2, 4),), (0,))
    assert separable_ties(task) is None


def test_another_model_is_refused() -> None:
    """A plan whose tie bytes are not the model's does not run."""
    plan = cut("plain", MODES[0], 6, (0, 1, 5))
    (task,) = plan.tasks
    other = structs.replace(plan, tasks=(structs.replace(task, tie_bytes=task.tie_bytes - 256),))
    with pytest.raises(MismatchError, match="layers share: 2816 in the plan, 3072 in the work"):
        run(other, tasks("plain"))
