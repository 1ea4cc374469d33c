"""One task on several devices trains what a plain loop trains that adds as the plan does.

Each replica adds its microbatches in ascending order, and replicas are added in the order of their
first microbatches. With one replica of everything that is the ordinary loop.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from msgspec import structs
from support.chains import WIDTH, block, chain
from support.device_cases import (
    KEPT,
    MICROBATCHES,
    PACKED,
    SAVED,
    SPILLING,
    STREAMED,
    Case,
    dropping,
    shares_of,
    sharing,
)
from support.fit import later
from support.passes import Where, breadth, greedy, in_turns
from support.pauses import pausing
from support.pipelined import RESIDENT, planned
from support.plain import Plain, train
from support.same import assert_same
from support.slabs import bound
from torch import Tensor, nn
from torch.nn import functional as F

from executor import run
from executor.driver import Options, Result
from executor.errors import InterruptedRun, RunError
from executor.records.stopping import parse
from executor.workload.task import Evaluation
from planner.orders import Order, Places
from planner.shards.modes import Mode
from plans import runlog
from plans.schema import Plan
from plans.trace import happened

pytestmark = pytest.mark.usefixtures("quick", "untimed")


def layout(front: int, rear: int, layers: int = 4) -> Places:
    """So many replicas of the lower half of the layers, and of the upper."""
    devices = tuple(range(front + rear))
    return tuple(devices[:front] if k < layers // 2 else devices[front:] for k in range(layers))


ORDERS: dict[str, tuple[Places, Callable[[Where], Order], Mode]] = {
    "gpipe": (((0,), (1,), (2,), (3,)), breadth, RESIDENT),
    "1f1b": (((0,), (1,), (2,), (3,)), lambda where: in_turns(where, 4), SAVED),
    "interleaved": (((0,), (1,), (0,), (1,)), greedy, SPILLING),
    "breadth first": (((0,), (1,), (0,), (1,)), breadth, STREAMED),
    "any": (((0,), (2,), (1,), (0,)), lambda where: greedy(where, random.Random(1)), KEPT),
    "halves": (((0,), (1,), (2,), (0,)), lambda where: greedy(where, halves=(1, 2, 3)), RESIDENT),
    "any halves": (
        ((0,), (1,), (1,), (0,)),
        lambda where: greedy(where, random.Random(1), halves=(1, 3)),
        SAVED,
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_trains_the_ordinary_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout on; with parameters that stay, and stages that spill all they have; with whole
    backwards and with halves of them. Nothing lies outside what was planned on any device."""
    case = dropping()
    places, order, mode = ORDERS[name]
    way = case.way(places, mode, order)
    plan = planned(case.problem, way)
    ends = bound(monkeypatch, plan)
    done = run(plan, [case.task])
    assert_same(plan, [case.task], done)
    memory = plan.programs[0].memory
    assert ends == [one.slab_bytes for one in memory]
    for peak, one in zip(done.peak_bytes, memory, strict=True):
        assert one.slab_bytes < peak <= one.slab_bytes + one.reserve_bytes


SHAPES = {
    **{f"{f},{r}": layout(f, r) for f, r in ((1, 1), (2, 1), (1, 4), (3, 3), (4, 2), (7, 1))},
    "two alike": ((0, 1),) * 4,
    "four alike": ((0, 1, 2, 3),) * 4,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_replicas_are_added_in_order(shape: str) -> None:
    """Front and rear replicated unequally, or the whole model; owned by any of them. Gradients are
    added on the devices, or on the host."""
    case = replicated()
    places, mode = SHAPES[shape], (RESIDENT, SPILLING)[list(SHAPES).index(shape) % 2]
    owners = {0: -1, 2: len(places[2]) // 2}
    way = case.way(places, mode, lambda where: greedy(where, random.Random(3)), owners)
    case.trained(way)


@cache
def replicated() -> Case:
    """A microbatch for each of eight replicas, so that some have two."""
    return Case(chain("a", 4, 8, 2), 8)


def test_another_order_of_addition_has_other_bits() -> None:
    """The ordinary loop is not what replicas train, and the test would see it."""
    case = replicated()
    way = case.way(SHAPES["four alike"])
    done = case.trained(way)
    with pytest.raises(AssertionError):
        assert_same(planned(case.problem, way), [case.task], done)


FEATURES = ("plain", "three", "unused", "clipped", "masters", "scaled")


@pytest.mark.parametrize("shape", ["pipe", "front", "alike"])
@pytest.mark.parametrize("feature", FEATURES)
def test_everything_a_device_can_do(feature: str, shape: str) -> None:
    """Words tied across devices, parameters without gradients, clipping by the norm of all
    gradients, fp32 masters, a scaled loss."""
    case = sharing(feature)
    places: dict[str, Places] = {
        "pipe": ((0,), (1,), (2,), (1,), (2,)),
        "front": ((0, 1), (0, 1), (0, 1), (2,), (2,)),
        "alike": ((0, 1, 2),) * 5,
    }
    mode = (RESIDENT, SPILLING, KEPT)[(FEATURES.index(feature) + list(places).index(shape)) % 3]
    case.trained(case.way(places[shape], mode, owners={0: -1}))


@pytest.mark.parametrize("shape", ["pipe", "alike"])
@pytest.mark.parametrize("feature", ["plain", "scaled"])
def test_backwards_in_halves(feature: str, shape: str) -> None:
    """Words tied across devices and replicas, whose owner is updated when all halves are done."""
    case = sharing(feature)
    places: Places = ((0, 1, 2),) * 5 if shape == "alike" else ((0,), (1,), (2,), (1,), (2,))
    mode = PACKED if shape == "pipe" else RESIDENT
    case.trained(case.way(places, mode, lambda where: greedy(where, halves=(1, 2, 3, 4))))


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 40 * F.mse_loss(outputs, targets)


def test_a_step_is_left_out_on_all_devices_or_on_none() -> None:
    """A gradient that is not finite on one device is known before any of them updates."""
    task = chain("a", 3, 4, 4, make=partial(nn.Linear, WIDTH, WIDTH))
    case = Case(replace(task, precision="fp16-autocast", loss=loud), 4)
    for mode in (RESIDENT, SPILLING):
        done = case.trained(case.way(((0,), (1, 2), (0,)), mode))
        counts = {float(one["step"]) for one in done.optimizer_state("a").values()}
        assert len(counts) == 1
        assert counts.pop() < 4


class Choosy(nn.Module):
    """Has a second map that only some microbatches go through."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.one(x)
        return y + self.two(x) if float(x.detach()[0, 0]) > 0.3 else y


def test_gradients_that_a_replica_does_not_have() -> None:
    """They are left out of the sum, of norms and updates, wherever they are sent."""
    for clip, mode in ((0.5, KEPT), (None, SPILLING)):
        case = Case(replace(chain("a", 3, 4, 3, make=Choosy), clip=clip), 4)
        case.trained(case.way(((0, 1),) * 3, RESIDENT, owners={0: 1}))
        case.trained(case.way(((0, 1, 2), (0, 1, 2), (3,)), mode, owners={0: 1}))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1))


@cache
def norming() -> Case:
    judged = Evaluation(2, partial(_rows, 12), 3)
    return Case(replace(chain("a", 3, 12, 5, make=normed), evaluate=judged), 3)


def _rows(count: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + number)
    one, two = torch.randn(2, count, WIDTH, generator=generator).unbind()
    return one, two


@pytest.mark.parametrize("mode", [RESIDENT, SPILLING, KEPT])
def test_evaluations_on_the_devices_that_train(mode: Mode) -> None:
    """Their losses, and statistics that every forward changes, are the plain loop's."""
    case = norming()
    way = case.way(((0,), (1,), (2,)), mode)
    done = case.trained(way)
    assert done.val_losses == {"a": case.plain(way).val_losses}


def test_replicas_of_what_forwards_change_are_refused() -> None:
    """One device has to see all microbatches in turn: the profile says so, and the first step."""
    case = norming()
    assert all(case.costs.shard(k, k + 1).in_turn for k in range(3))
    assert not dropping().costs.shard(0, 4).in_turn
    plan = planned(case.problem, case.way(((0, 1), (2,), (2,))))
    text = (
        r"a\.s0\.F\d on [01]\.compute in round 0: .*one device has to run its microbatches in turn"
    )
    with pytest.raises(RunError, match=text):
        run(plan, [case.task])


@pytest.mark.parametrize("seed", range(4))
def test_any_way_at_all(seed: int) -> None:
    """Any replicas of any shard, each shard in a mode of its own, with whole backwards or halves,
    in any order, owned by anybody."""
    rng = random.Random(seed)
    case = (sharing("clipped"), dropping(), sharing("scaled"))[seed % 3]
    layers = len(case.profile.tasks[0].layers)
    devices = [rng.sample(range(3), rng.choice([1, 1, 2, 3])) for _ in range(layers - 1)]
    places = (*map(tuple, devices), (0, 1, 2))
    owners = {k: rng.randrange(min(len(own), case.microbatches)) for k, own in enumerate(places)}
    halves = [k for k in range(1, layers) if rng.random() < 0.5 and k != 2]
    modes = iter(rng.choice([RESIDENT, KEPT, SAVED, PACKED]) for _ in range(layers))
    order = partial(greedy, rng=rng, halves=halves)
    case.trained(case.way(places, lambda: next(modes), order, owners))


@pytest.mark.parametrize("mode", [RESIDENT, SPILLING])
def test_any_interleaving_gives_the_same_bits(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random delays before every op change the order of the streams and nothing else."""
    case = sharing("clipped")
    pausing(monkeypatch, 1, 1000)
    case.trained(case.way(((0, 1), (1, 2), (2,), (0,), (1,)), mode))


def test_serial_copies_give_the_same_bits() -> None:
    """Also where an op takes two devices."""
    case = sharing("plain")
    way = case.way(((0, 1), (0, 1), (1,), (2,), (2,)), KEPT)
    case.trained(way, Options(serial_copies=True))


def test_a_run_says_what_every_stream_did(tmp_path: Path) -> None:
    """Every op of every round is in the log, sends among them, and a loss for each step."""
    case, log = dropping(), tmp_path / "x.jsonl"
    way = case.way(layout(2, 2))
    plan = planned(case.problem, way)
    run(plan, [case.task], Options(log=log))
    ops = list(happened(plan, runlog.load(log)))
    (program,) = plan.programs
    assert len(ops) == len(program.enter) + 2 * len(program.round) + len(program.leave)
    assert {"0.p2p", "3.p2p"} <= {op.stream for op in ops}
    assert [line.step for line in runlog.load(log).steps] == [0, 1]


def same_as(done: Plain, *parts: Result) -> None:
    """Runs one after the other have trained what the plain loop did."""
    assert [loss for part in parts for loss in part.losses["a"]] == done.losses
    for name, parameter in parts[-1].model("a").named_parameters():
        assert torch.equal(parameter, done.params[name]), name


@pytest.mark.parametrize("feature", ["masters", "scaled"])
def test_a_run_goes_on_where_another_ended(feature: str, tmp_path: Path) -> None:
    """On other devices than before, in another order, adding alike."""
    case = sharing(feature)
    before = case.way(((0,), (1,), (2,), (1,), (2,)), KEPT)
    behind = case.way(((1,), (0,), (1,), (0,), (0,)), RESIDENT, breadth)
    first, rest = (planned(case.problem, way) for way in (before, behind))
    done = [run(later(first, 0, 1), [case.task], Options(checkpoints=tmp_path))]
    done.append(run(later(rest, 1, 1), [case.task], Options(resume=tmp_path)))
    plain = case.plain(before)
    assert [loss for part in done for loss in part.losses["t"]] == plain.losses
    for name, parameter in done[-1].model("t").named_parameters():
        assert torch.equal(parameter, plain.params[name]), name


@pytest.mark.usefixtures("heard")
def test_a_signal_ends_all_devices_behind_the_same_round(tmp_path: Path) -> None:
    """Rounds under way end on every device, the state is kept, and the rest trains the same."""
    case = dropping()
    rows = case.task.data

    def data(step: int) -> object:
        if step == 4:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.3)
        return rows(step)

    task = replace(case.task, steps=9)
    way = case.way(layout(2, 1), KEPT)
    plan = later(planned(case.problem, way), 0, 9)
    log, folder = tmp_path / "x.jsonl", tmp_path / "kept"
    with pytest.raises(InterruptedRun):
        run(plan, [replace(task, data=data)], Options(log=log, checkpoints=folder))
    (kept,) = folder.iterdir()
    done = int(kept.stem.partition("-")[2])
    losses = [line.loss for line in runlog.load(log).steps]
    assert len(losses) == done
    assert 0 < done < 9
    rest = run(later(plan, done, 9 - done), [task], Options(resume=folder))
    plain = train(task, MICROBATCHES, shares=shares_of(way, task))
    assert losses + rest.losses["a"] == plain.losses
    same_as(plain._replace(losses=plain.losses[done:]), rest)


class Failing(nn.Linear):
    """Fails in its eighth forward."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        Failing.calls += 1
        if Failing.calls == 8:
            raise RuntimeError("the coffee is cold")
        return super().forward(x)


def failing() -> nn.Sequential:
    """Four blocks, of which the last one fails."""
    Failing.calls = 0
    last = nn.Sequential(Failing(), nn.GELU(), nn.Dropout(0.25))
    return nn.Sequential(*(block() for _ in range(3)), last)


def test_a_failure_on_one_device_ends_all() -> None:
    """By the name of its op, not of one that waits for it."""
    case = dropping()
    plan = later(planned(case.problem, case.way(layout(2, 1), KEPT)), 0, 5)
    with pytest.raises(RunError, match=r"^a\.s3\.B\d on 2\.compute in round \d: .*coffee is cold"):
        run(plan, [replace(case.task, model=failing, steps=5)])


def beside(first: Plan, *others: Plan) -> Plan:
    """Plans of several devices each, one beside the other."""
    programs, segments, host, devices, tasks = [], [], [], [], []
    end = 0
    for number, plan in enumerate((first, *others)):
        (program,), (segment,) = plan.programs, plan.segments
        name = f"{program.name}{number}"
        own = tuple(len(devices) + d for d in segment.devices)
        programs.append(structs.replace(program, name=name))
        segments.append(structs.replace(segment, program=name, devices=own))
        host += [structs.replace(b, offset=b.offset + end) for b in plan.host.buffers]
        end += plan.host.bytes
        devices += plan.devices
        tasks += plan.tasks
    store = structs.replace(first.host, bytes=end, budget_bytes=end, buffers=tuple(host))
    lists = {"programs": programs, "segments": segments, "devices": devices, "tasks": tasks}
    return structs.replace(first, host=store, **{key: tuple(all_) for key, all_ in lists.items()})


def test_a_task_that_fails_leaves_others_alone() -> None:
    """With --keep-going, those that train on other devices end with the bits of their own runs."""
    failed, other = dropping(), Case(chain("b", 3, 8, 2, make=partial(block, 0.0), seed=5), 4)
    way = other.way(((0, 1), (0, 1), (2,)))
    plan = beside(planned(failed.problem, failed.way(layout(1, 1))), planned(other.problem, way))
    tasks = [replace(failed.task, model=failing), other.task]
    result = run(plan, tasks, Options(keep_going=True))
    assert result.dropped.keys() == {"a"}
    assert result.dropped["a"].op.startswith("a.s3.B")
    (mine,) = [task for task in plan.tasks if task.name == "b"]
    alone = structs.replace(plan, tasks=(mine,))
    assert_same(alone, [other.task], result, lambda *_: other.plain(way))


def test_a_rule_ends_a_task_on_all_its_devices() -> None:
    """Where a segment ends, whatever its devices."""
    case = dropping()
    plan = planned(case.problem, case.way(layout(2, 1)))
    (segment,) = plan.segments
    halves = (structs.replace(segment, rounds=1),) * 2
    plan = structs.replace(plan, segments=halves)
    result = run(plan, [case.task], Options(stop=(parse("loss>0@1"),)))
    assert (result.stopped.keys(), len(result.losses["a"])) == ({"a"}, 1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the plain loop has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
