"""Tasks that wait on the disk, in the run's folder, train the bits that they train without one, and
lose nothing; rules end a task where a segment of it ends."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import WIDTH, adapted, tasks_for
from support.disked import DISKED, plain, ready
from support.fit import fit
from support.pauses import pausing
from support.plain import train
from support.same import assert_same, step_in
from torch import nn
from torch.nn import functional as F

import plans
from executor import run
from executor.cli import main
from executor.devices.hostmem import HostMemory
from executor.driver import Options, Result
from executor.errors import MismatchError, RunError, UsageError
from executor.profiling import links as link_profiler
from executor.records import above, checkpoint
from executor.shards import HostTask
from executor.workload import Task
from plans import runlog
from plans.order import Reached, rest
from plans.schema import Plan


def others_same(plan: Plan, tasks: list[Task], result: Result, *but: str) -> None:
    """All tasks but some trained the bits of the plain loop."""
    kept = structs.replace(plan, tasks=tuple(t for t in plan.tasks if t.name not in but))
    assert_same(kept, [task for task in tasks if task.name not in but], result)


@pytest.mark.parametrize("name", DISKED)
def test_tasks_that_wait_on_the_disk_train_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the plain loop; the latest states are left."""
    plan, tasks = ready(name)
    plans.prove(plan)
    plans.prove(plain(plan))
    pausing(monkeypatch, 1, 500)
    result = run(plan, tasks, Options(folder=tmp_path))
    assert_same(plan, tasks, result)
    assert all(step_in(tmp_path, task.name) == task.steps for task in plan.tasks)
    assert result.host_bytes < sum(b.bytes for b in plan.host.buffers)


@pytest.mark.parametrize("name", DISKED)
def test_what_is_left_goes_on_in_the_folder(name: str, tmp_path: Path) -> None:
    """Bit for bit, wherever it was killed: what is left of the plan finds each task on the disk or
    in the store."""
    plan, tasks = ready(name)
    wholes = [train(task, one.microbatches) for task, one in zip(tasks, plan.tasks, strict=True)]
    for until in range(1, len(plan.segments), 3):
        folder = tmp_path / str(until)
        done = dict.fromkeys((task.name for task in plan.tasks), 0)
        for segment in plan.segments[:until]:
            done[segment.program] += segment.rounds
        names = [name for name, steps in done.items() if steps]
        first = structs.replace(
            plan,
            segments=plan.segments[:until],
            programs=tuple(p for p in plan.programs if {*p.tasks} <= {*names}),
            tasks=tuple(structs.replace(t, steps=done[t.name]) for t in plan.tasks if done[t.name]),
        )
        run(first, [t for t in tasks if t.name in names], Options(folder=folder))
        left = rest(plan, Reached(done))
        result = run(left, tasks, Options(folder=folder))
        for task, whole in zip(tasks, wholes, strict=True):
            for key, parameter in result.model(task.name).named_parameters():
                assert torch.equal(parameter, whole.params[key]), (until, key)


def test_a_frozen_base_is_in_the_files_of_tasks_that_wait(tmp_path: Path) -> None:
    """Others have its place meanwhile. What did not wait before has no base in its file, and waits
    now."""
    plan, tasks = ready("in-turn", adapted)
    wholes = [train(task, one.microbatches) for task, one in zip(tasks, plan.tasks, strict=True)]
    done = {"a": 2, "b": 2, "c": 1}
    tasks_of = tuple(structs.replace(task, steps=done[task.name]) for task in plan.tasks)
    first = plain(structs.replace(plan, segments=plan.segments[:3], tasks=tasks_of))
    run(first, tasks, Options(folder=tmp_path))
    assert "0.0.weight" not in torch.load(tmp_path / "c.pt")["model"]
    result = run(rest(plan, Reached(done)), tasks, Options(folder=tmp_path))
    assert "0.0.weight" in torch.load(tmp_path / "c.pt")["model"]
    for task, whole in zip(tasks, wholes, strict=True):
        for key, parameter in result.model(task.name).named_parameters():
            assert torch.equal(parameter, whole.params[key]), key


def test_a_folder_must_be_given(tmp_path: Path) -> None:
    """A plan whose tasks all stay in the store needs none."""
    plan, tasks = ready("beside")
    with pytest.raises(UsageError, match="wait on the disk, in the run's folder; say where, -o"):
        run(plan, tasks)
    assert_same(plan, tasks, run(plain(plan), tasks))


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_damaged_file_ends_the_run_or_drops_its_task(
    keep_going: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path; with --keep-going the others are trained."""
    plan, tasks = ready("two-rooms")
    real = checkpoint.write_part

    def spoil(target: Path, task: HostTask, step: int) -> Path:
        part = real(target, task, step)
        if task.plan.name == "b":
            data = bytearray(part.read_bytes())
            data[len(data) // 2] ^= 1
            part.write_bytes(data)
        return part

    monkeypatch.setattr(checkpoint, "write_part", spoil)
    options = Options(folder=tmp_path, keep_going=keep_going)
    if not keep_going:
        with pytest.raises((RunError, MismatchError), match=r"b\.pt: "):
            run(plan, tasks, options)
        return
    result = run(plan, tasks, options)
    (drop,) = result.dropped.values()
    assert drop.task == "b"
    assert "b.pt" in drop.reason
    others_same(plan, tasks, result, "b")


def test_a_stopped_task_waits_on_the_disk_to_the_end(tmp_path: Path) -> None:
    """Its state whole, and the others never notice."""
    plan, tasks = ready("in-turn")

    def stop(task: str, step: int, *_: float | None) -> str:
        return "enough" if task == "a" and step >= 3 else ""

    result = run(plan, tasks, Options(folder=tmp_path, stop=stop))
    assert result.stopped["a"].step == 3
    others_same(plan, tasks, result, "a")
    expected = train(replace(tasks[0], steps=3), plan.tasks[0].microbatches)
    for name, parameter in result.model("a").named_parameters():
        assert torch.equal(parameter, expected.params[name])


class Failing(nn.Linear):
    """Fails in its sixth forward."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Failing.calls += 1
        if Failing.calls > 5:
            raise RuntimeError("cold")
        return F.linear(x, self.weight, self.bias)


def test_a_dropped_task_leaves_its_place_to_others(tmp_path: Path) -> None:
    """None of its segments runs any more, and those of others do."""
    plan, tasks = ready("two-rooms")
    Failing.calls = 0
    broken = _with_layer(tasks, "a")
    result = run(plan, broken, Options(folder=tmp_path, keep_going=True))
    assert result.dropped.keys() == {"a"}
    others_same(plan, broken, result, "a")


def _with_layer(tasks: Sequence[Task], name: str) -> list[Task]:
    """The tasks, of which one has a failing layer around the linear one of its last block."""

    def model(task: Task) -> nn.Module:
        assert callable(task.model)
        made = task.model()
        last = made[len(made) - 1]
        odd = Failing()
        odd.load_state_dict(last[0].state_dict())
        last[0] = odd
        return made

    return [
        replace(task, model=partial(model, task)) if task.name == name else task for task in tasks
    ]


def test_models_take_turns_after_the_run(tmp_path: Path) -> None:
    """One whose place another took is of no use, and not of wrong use, until it is asked for."""
    plan, tasks = ready("beside")
    result = run(plan, tasks, Options(folder=tmp_path))
    c, b = result.model("c"), result.model("b")
    kept = result.optimizer_state("b")
    assert all(parameter.numel() == 0 for parameter in c.parameters())
    again = result.model("c")
    assert again is c
    assert all(parameter.numel() == 0 for parameter in b.parameters())
    expected = train(tasks[1], plan.tasks[1].microbatches)
    for name, state in expected.state.items():
        assert torch.equal(kept[name]["exp_avg"], state["exp_avg"])
    assert_same(plan, tasks, result)


def test_the_profiler_measures_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rates and the room, and leaves nothing behind; a full disk is said so."""
    monkeypatch.setattr(link_profiler, "FILE_BYTES", 1 << 20)
    found = link_profiler.disk_rates(tmp_path, HostMemory())
    assert found.usable_bytes > 0
    assert min(found.read.bytes_per_s, found.write.bytes_per_s) > 1 << 20
    assert list(tmp_path.iterdir()) == []

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint._Sink, "write", full)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        link_profiler.disk_rates(tmp_path, HostMemory())


def split(plan: Plan) -> Plan:
    """The plan's one segment as two, the first of one round."""
    (segment,) = plan.segments
    first = structs.replace(segment, rounds=1)
    rest = structs.replace(segment, rounds=segment.rounds - 1)
    return structs.replace(plan, segments=(first, rest))


@pytest.mark.parametrize(
    ("step", "loss", "stops"),
    [
        (200, 3.6, True),
        (199, 3.6, False),
        (300, 3.5, False),
        (300, float("nan"), True),
        (300, None, False),
    ],
)
def test_what_the_rule_says(step: int, loss: float | None, stops: bool) -> None:
    """Value and step count; no number is above everything."""
    assert above("3.5@200")("a", step, loss, None) == stops * "loss above 3.5 at step 200"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "'' is no loss"),
        ("3.5", "'' is no number of steps"),
        ("x@3", "'x' is no loss"),
        ("nan@1", "'nan' is no loss"),
        ("1@-2", "'-2' is no number of steps"),
    ],
)
def test_what_is_no_rule(text: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows what one looks like, and what is wrong."""
    with pytest.raises(SystemExit, match="2"):
        main(["run", "plan.json", "--stop-above", text])
    assert f"{text!r} is not like 3.5@200: {wrong}" in capsys.readouterr().err


@pytest.mark.parametrize(("rule", "steps"), [("0@1", 1), ("0@2", 4), ("99@1", 4)])
def test_a_task_ends_at_a_boundary(rule: str, steps: int, tmp_path: Path) -> None:
    """With the state and the losses of the steps that it did; the log says why."""
    tasks = tasks_for(handmade.streamed())
    plan = split(fit(handmade.streamed(), tasks))
    result = run(plan, tasks, Options(folder=tmp_path, stop=above(rule)))
    plain = train(tasks[0], plan.tasks[0].microbatches)
    assert result.losses["a"] == plain.losses[:steps]
    told = [(line.task, line.step, line.rule) for line in runlog.load(tmp_path).stops]
    assert told == ([("a", 1, "loss above 0 at step 1")] if steps == 1 else [])
    assert result.stopped.keys() == ({"a"} if steps == 1 else set())
    assert runlog.load(tmp_path).checkpoints[-1].step == steps
