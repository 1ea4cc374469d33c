"""A run of many tasks goes on without the one that fails, and the others get their bits."""

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from support import fake_cuda, handmade
from support.chains import WIDTH, chain, tasks_for
from support.disked import solos
from support.fit import fit
from support.parts import resident_part, saved_part, streamed_part
from support.same import assert_same
from torch import Tensor, nn

import plans
from executor import report, run
from executor.driver import Options, Result
from executor.errors import RunError
from executor.records.progress import Progress
from executor.replay.failures import trouble
from executor.replay.recorder import Recorder
from executor.shards import Shard
from executor.workload import Task
from planner.views import compare, table
from plans import runlog
from plans.schema import Plan
from plans.schema import Task as PlanTask

pytestmark = pytest.mark.timeout(60)  # no failure holds the others up
KEEP = Options(keep_going=True)


def four() -> Plan:
    """Tasks a and then b on one device, c and then d on another."""
    parts = [streamed_part("a"), resident_part("b"), saved_part("c"), streamed_part("d", shards=2)]
    return solos(parts, [("a", 0, 4), ("c", 1, 4), ("b", 0, 4), ("d", 1, 4)])


class Counted(nn.Linear):
    """Does something odd from its `after`-th forward on, a number shared by all layers."""

    calls = count()
    after = 40

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return self.odd(y) if next(Counted.calls) > Counted.after else y

    def odd(self, y: Tensor) -> Tensor:
        raise RuntimeError("the coffee\nis cold")


class Infinite(Counted):
    """Begins to give what is no number."""

    def odd(self, y: Tensor) -> Tensor:
        return y * math.nan


@pytest.fixture(autouse=True)
def _anew() -> None:
    Counted.calls = count()


LINEAR = partial(nn.Linear, WIDTH, WIDTH)


def linear(of: PlanTask, make: Callable[[], nn.Module] = LINEAR) -> Task:
    """A chain for the planned task, of linear layers or some of their size."""
    return chain(of.name, of.shards[-1].end_layer, of.batch, of.steps, make=make)


def ready(plan: Plan, **layers: Callable[[], nn.Module]) -> tuple[Plan, list[Task]]:
    """The plan fitted to ordinary layers, those of some tasks linear ones; and the tasks, of which
    these have such layers instead."""
    ordinary = [
        linear(planned) if planned.name in layers else task
        for planned, task in zip(plan.tasks, tasks_for(plan), strict=True)
    ]
    fitted = fit(plan, ordinary)
    plans.prove(fitted)
    made = [
        replace(t, model=linear(p, layers[t.name]).model) if t.name in layers else t
        for p, t in zip(plan.tasks, ordinary, strict=True)
    ]
    return fitted, made


def others_same(plan: Plan, tasks: Sequence[Task], result: Result, *dropped: str) -> None:
    """Exactly these tasks were dropped, and all others have the bits of the plain loop."""
    assert set(result.dropped) == set(dropped)
    left = tuple(task for task in plan.tasks if task.name not in dropped)
    own = [task for task in tasks if task.name not in dropped]
    assert_same(structs.replace(plan, tasks=left), own, result)


def _ends(step: int) -> tuple[Tensor, Tensor]:
    if step == 2:
        raise StopIteration("no more")
    return torch.ones(4, WIDTH), torch.ones(4, WIDTH)


def _shrinks(step: int) -> tuple[Tensor, Tensor]:
    return torch.ones(4 - step // 2, WIDTH), torch.ones(4, WIDTH)


@pytest.mark.parametrize("victim", ["a", "c"])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Counted, "RuntimeError: the coffee is cold"),
        (Infinite, "the loss of step 2 is nan"),
    ],
)
def test_a_layer_that_goes_wrong(
    make: Callable[[], nn.Module], text: str, victim: str, tmp_path: Path
) -> None:
    """The others train to their end, those that follow on its device too; the log says what was."""
    Counted.after = 40 if victim == "a" else 17
    plan, tasks = ready(four(), **{victim: make})
    result = run(plan, tasks, Options(keep_going=True, folder=tmp_path))
    others_same(plan, tasks, result, victim)
    drop = result.dropped[victim]
    assert text in drop.reason
    assert drop.op.startswith(f"{victim}.s")
    assert 1 <= drop.step <= 2
    told = runlog.load(tmp_path)
    assert told.drops == (drop,)
    assert told.end.status == "partial"
    assert text in told.end.error
    row = f"dropped: {victim} in step {drop.step}, {drop.op}: {drop.reason}"
    assert row in report.table(plan, result, tmp_path)
    found = compare(plan, told, told.header.plan_sha256)
    assert found.status == "partial"
    assert row in table(found)
    known = {(p.segment, p.op.id, p.round) for p in plans.timing.timeline(plan)}
    records = {(record.segment, record.op, record.round) for record in told.ops}
    assert known >= records
    # A loss is read after its op; by then the task's other ops may have ended too.
    assert make is Infinite or known != records


@pytest.mark.parametrize(
    ("data", "text"),
    [(_ends, "data(2): StopIteration: no more"), (_shrinks, "data(2): returned 3 inputs")],
)
def test_data_that_ends(data: Callable[[int], tuple[Tensor, Tensor]], text: str) -> None:
    """A task without data is dropped at the step that it has none for."""
    plan, tasks = ready(four())
    tasks = [replace(task, data=data) if task.name == "b" else task for task in tasks]
    result = run(plan, tasks, KEEP)
    others_same(plan, tasks, result, "b")
    drop = result.dropped["b"]
    assert (drop.step, drop.op) == (2, "b.batch.P0")
    assert text in drop.reason


def test_a_segment_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose layers cannot be copied to their device is dropped before its first step."""
    plan, tasks = ready(four(), b=Counted)
    copied = Shard.replica

    def failing(shard: Shard, *where: Any, **how: Any) -> Shard:
        if isinstance(shard.layers[0], Counted):
            raise RuntimeError("no copy of this one")
        return copied(shard, *where, **how)

    monkeypatch.setattr(Shard, "replica", failing)
    result = run(plan, tasks, KEEP)
    others_same(plan, tasks, result, "b")
    assert result.dropped["b"].reason.endswith("no copy of this one")
    assert result.dropped["b"].step == 0


def test_without_it_the_run_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure ends the run, and a loss that is no number does not: that is said once, at once
    and in the report."""
    plan, tasks = ready(four(), a=Counted)
    with pytest.raises(RunError, match=r"^a\.s\d\.[FB]\d on 0\.compute in round \d: Runtime"):
        run(plan, tasks)
    Counted.calls = count()
    plan, tasks = ready(four(), a=Infinite)
    result = run(plan, tasks)
    assert math.isnan(result.losses["a"][-1])
    assert len(result.losses["a"]) == 4
    first = next(step for step, loss in enumerate(result.losses["a"]) if math.isnan(loss))
    text = f"the loss of step {first} is nan; --keep-going drops such tasks"
    assert first < 3
    assert result.warnings == {"a": text}
    assert capsys.readouterr().err == f"warning: task a: {text}\n"
    assert f"\nwarning: task a: {text}" in report.table(plan, result, Path("x"))
    told = json.loads(report.to_json(plan, result, Path("x")))["tasks"]
    assert [task["warning"] for task in told] == [text, None, None, None]
    progress = Progress(plan, Recorder(plan.tasks))  # the end that a run's table expects
    ends = [progress.planned_us(task.name, task.steps) for task in plan.tasks]
    assert [task["planned_end_us"] for task in told] == ends


def test_all_tasks_fail(tmp_path: Path) -> None:
    """There is still a result, and a log."""
    Counted.after = 0
    plan, tasks = ready(four(), a=Counted, b=Counted, c=Counted, d=Counted)
    result = run(plan, tasks, Options(keep_going=True, folder=tmp_path))
    assert set(result.dropped) == set("abcd")
    assert {drop.task for drop in runlog.load(tmp_path).drops} == set("abcd")


@pytest.mark.parametrize("make", [Counted, Infinite])
def test_one_device(make: Callable[[], nn.Module]) -> None:
    """The next task on the only device finds the generator and the memory as it expects them."""
    Counted.after = 20
    plan, tasks = ready(handmade.relay(), a=make)
    others_same(plan, tasks, run(plan, tasks, KEEP), "a")


class Drawing(Counted):
    """Begins to draw random numbers that nobody planned."""

    def odd(self, y: Tensor) -> Tensor:
        return y + torch.rand(1)


class Seeding(Counted):
    """Begins to seed the default generator."""

    def odd(self, y: Tensor) -> Tensor:
        torch.manual_seed(1)
        return y


@pytest.mark.parametrize("make", [Drawing, Seeding])
@pytest.mark.parametrize("plan", [four, handmade.relay])
def test_an_unplanned_draw_is_everybodys_trouble(
    make: Callable[[], nn.Module], plan: Callable[[], Plan]
) -> None:
    """A generator that somebody moves leaves no bits to trust, on one device or several."""
    Counted.after = 20
    made, tasks = ready(plan(), a=make)
    with pytest.raises(RunError, match="drew random numbers or set a seed although the plan knows"):
        run(made, tasks, KEEP)


class Asleep(nn.Linear):
    """Sleeps in its forward until its test is over."""

    over = threading.Event()

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        Asleep.over.wait(600)
        return super().forward(x)


def test_an_op_that_never_returns_ends_the_run() -> None:
    """Nobody knows what it will still write."""
    plan, tasks = ready(solos([resident_part("a")], [("a", 0, 4)]), a=Asleep)
    Asleep.over.clear()
    with pytest.raises(RunError, match=r"no op ended for .*: a\.s0\.B0 runs on 0\.compute"):
        run(plan, tasks, Options(keep_going=True, stall_seconds=0.6))
    Asleep.over.set()


def shared() -> Plan:
    """Tasks a and b in one program on a device, c beside them, d after them."""
    parts = [streamed_part("a", shards=2), resident_part("b")]
    more = [resident_part("c"), streamed_part("d", shards=2)]
    programs = [
        handmade.program("both", 1, parts),
        *(handmade.program(part.task.name, 1, [part]) for part in more),
    ]
    runs = [("both", (0,), 4), ("c", (1,), 4), ("d", (0,), 4)]
    return handmade.assemble([*parts, *more], programs, runs)


def test_a_task_that_shares_its_program() -> None:
    """Two tasks in one segment end together, the second for the first's sake."""
    Counted.after = 20
    plan, tasks = ready(shared(), a=Counted)
    result = run(plan, tasks, KEEP)
    others_same(plan, tasks, result, "a", "b")
    assert result.dropped["b"].reason == (
        "segment 0 trains it in one program with task a, which was dropped: "
        "RuntimeError: the coffee is cold"
    )
    assert result.dropped["b"].op == ""


def test_a_later_segment_with_the_failed_task() -> None:
    """Whoever would share a program with it later cannot end, and does not go on."""
    parts = [resident_part("a"), resident_part("b"), resident_part("c")]
    programs = [
        handmade.program("both", 1, parts[:2]),
        *(handmade.program(part.task.name, 1, [part]) for part in parts),
    ]
    runs = [("a", (0,), 2), ("b", (1,), 2), ("both", (0,), 2), ("c", (1,), 4)]
    Counted.after = 4
    plan, tasks = ready(handmade.assemble(parts, programs, runs), a=Counted)
    result = run(plan, tasks, KEEP)
    others_same(plan, tasks, result, "a", "b")
    assert result.dropped["b"].reason.startswith("segment 2 trains it in one program with task a")


def test_copies_under_way_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA devices the next segment begins when what was launched before is done."""
    fake_cuda.install(monkeypatch, pause_us=20_000)
    Counted.after = 20
    plan, tasks = ready(handmade.relay(), a=Counted)
    plan = fake_cuda.on_cuda(plan)
    others_same(plan, tasks, run(plan, tasks, KEEP), "a")


def test_a_loss_scale_is_found_in_peace() -> None:
    """A task in fp16 is dropped after ten steps in a row without a loss, any other after one."""
    losses = dict.fromkeys(range(9), math.inf)
    assert not any(trouble(losses, step, "fp16-autocast") for step in losses)
    losses |= {9: 1.0, **dict.fromkeys(range(10, 20), math.nan)}
    told = [trouble(losses, step, "fp16-autocast") for step in range(9, 20)]
    last = "the loss of step 19 is nan and was no number in the 9 steps before"
    assert told == [""] * 10 + [last]
    assert trouble({0: math.nan}, 0, "bf16") == "the loss of step 0 is nan"
    assert trouble(losses, 9, "bf16") == ""


def test_progress_follows_the_plan() -> None:
    """A task that runs at half the planned speed ends twice as late, and so does who waits."""
    plan, _ = ready(four())
    recorder = Recorder(plan.tasks)
    progress = Progress(plan, recorder)
    planned = {task.name: progress.planned_us(task.name, task.steps) for task in plan.tasks}
    now = 2 * progress.planned_us("a", 2)
    recorder.losses["a"] |= {0: 1.5, 1: 1.25}
    recorder.ended_us["a"] = now
    progress.show([runlog.DropRecord("d", 0, "", "", 0)])
    assert progress.ends_us() == {name: 2 * planned[name] for name in "abc"}
    assert progress.line(now).startswith("2/12 steps, ")
    assert "; a 2/4 loss 1.25 last step at " in progress.line(now)
