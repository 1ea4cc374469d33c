"""A run is planned and trained further from where an earlier one left its tasks.

`short` and `long` below are workloads of their own: the same tasks with few and with more steps.
"""

import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support import chains
from support.chains import chain
from support.cli import executor_cli, planner_cli, profile, refused, smallest_budget, succeeded
from support.forked import ended, started
from support.plain import train
from support.same import assert_saved
from torch import Tensor

import plans
from executor import run
from executor.driver import Options
from executor.workload.task import Evaluation, Task
from plans import runlog

pytestmark = pytest.mark.usefixtures("alone", "untimed", "here")

rows = partial(chains.rows, 2)


def tasks(steps: int) -> list[Task]:
    return [
        chain("kept", 2, 2, steps, seed=1),
        chain("rough", 2, 2, steps, seed=2, precision="bf16", clip=0.1),
        chain("ended", 2, 2, 3, seed=3),
    ]


def short() -> list[Task]:
    return tasks(3)


def long() -> list[Task]:
    return tasks(8)


def test_training_goes_on_from_a_log() -> None:
    """Planned from the log, resumed from the checkpoints: the bits of one long plain loop."""
    profile(f"{__file__}:short", "short.json")
    budget = ("--device-memory", smallest_budget("short.json"))
    succeeded(planner_cli("build", "short.json", "-o", "first.json", *budget))
    succeeded(executor_cli("run", "first.json", "-o", "first.jsonl", "--checkpoints", "kept"))
    profile(f"{__file__}:long", "long.json")
    budget = ("--device-memory", smallest_budget("long.json"))
    succeeded(
        planner_cli("build", "long.json", "--from", "first.jsonl", "-o", "rest.json", *budget)
    )
    succeeded(planner_cli("check", "rest.json"))
    assert [(t.name, t.done, t.steps) for t in plans.load("rest.json").tasks] == [
        ("kept", 3, 5),
        ("rough", 3, 5),
    ]
    run = ("run", "rest.json", "-o", "rest.jsonl")
    refused(executor_cli(*run), 2, "say where its checkpoint is, --resume DIR")
    succeeded(executor_cli(*run, "--resume", "kept", "--save", "."))
    first, rest = plans.load("first.json").tasks, plans.load("rest.json").tasks
    sizes = [{t.name: t.microbatches for t in part} for part in (first, rest)]
    for task in long()[:2]:
        plain = train(task, lambda step, name=task.name: sizes[step >= 3][name])
        steps = [*runlog.load("first.jsonl").steps, *runlog.load("rest.jsonl").steps]
        losses = {line.step: line.loss for line in steps if line.task == task.name}
        assert [losses[step] for step in range(8)] == plain.losses
        assert torch.load(f"{task.name}.pt")["step"] == 8
        assert_saved(f"{task.name}.pt", plain)


def test_a_task_keeps_its_microbatch() -> None:
    """Going on, whether or not another one would be better; another only where that is let, and
    then plan, `show`, log and report say so."""
    profile(f"{__file__}:short", "short.json")
    profile(f"{__file__}:long", "long.json")
    needs = {size: smallest_budget("long.json", "--microbatch", size) for size in (1, 2)}
    roomy, tight = max(needs, key=needs.__getitem__), min(needs, key=needs.__getitem__)
    assert needs[roomy] > needs[tight]
    for others, own in ((1, 2), (2, 1), (roomy, roomy)):
        sizes = ("--microbatch", f"kept={own}", "--microbatch", others)
        succeeded(planner_cli("build", "short.json", "-o", "first.json", *sizes))
        run = ("run", "first.json", "-o", "first.jsonl", "--checkpoints", "kept", "--overwrite")
        succeeded(executor_cli(*run))
        build = ("build", "long.json", "--from", "first.jsonl", "-o", "rest.json")
        succeeded(planner_cli(*build))
        rest = plans.load("rest.json").tasks
        assert [(t.microbatch, t.earlier_microbatch) for t in rest] == [(own, 0), (others, 0)]
    room = ("--device-memory", needs[tight])
    text = f"rough keeps microbatches of {roomy} as they began: --microbatch free lets them change"
    refused(planner_cli(*build, *room), 3, text)
    succeeded(planner_cli(*build, *room, "--microbatch", "free"))
    rest = plans.load("rest.json").tasks
    changed = {t.name: t.earlier_microbatch for t in rest if t.microbatch != roomy}
    assert changed
    assert set(changed.values()) == {roomy}
    assert all(t.name in changed or not t.earlier_microbatch for t in rest)
    text = f"microbatches of {roomy} up to step 3"
    assert succeeded(planner_cli("show", "rest.json")).out.count(text) == len(changed)
    told = succeeded(executor_cli("run", "rest.json", "-o", "rest.jsonl", "--resume", "kept")).out
    assert told.count(f"has {tight} and had {roomy} up to step 3: the last bits") == len(changed)
    header = runlog.load("rest.jsonl").header
    assert header.earlier_microbatch == changed
    assert header.microbatch == {t.name: t.microbatch for t in rest}


def slow() -> list[Task]:
    def late(step: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.02)
        return rows(step)

    return [replace(task, data=late, steps=40) for task in tasks(3)[:2]]


def test_a_killed_run_goes_on() -> None:
    """Killed at any moment, it leaves a part of a log that says so; planned again from what that
    has, and resumed, it has the plain loop's bits, and nothing is in the way of its log."""
    profile(f"{__file__}:slow", "slow.json")
    whole = ("build", "slow.json", "--segment-steps", 5)
    succeeded(planner_cli(*whole, "-o", "first.json"))
    run = ["-m", "executor", "run", "first.json", "-o", "first.jsonl", "--checkpoints", "kept"]
    process = started(run, Path("said"))
    while process.is_alive() and not list(Path("kept").glob("*-15.pt")):
        time.sleep(0.01)
    process.kill()
    assert (ended(process), Path("said").read_text()) == (-signal.SIGKILL, "")
    assert not Path("first.jsonl").exists()
    whole_lines, _, _ = Path("first.jsonl.part").read_bytes().rpartition(b"\n")
    Path("killed.jsonl").write_bytes(whole_lines)
    log = runlog.load("killed.jsonl")
    assert log.header.plan_sha256 == plans.sha256(Path("first.json").read_bytes())
    assert log.ops
    assert log.end is None
    assert "run killed" in succeeded(planner_cli("compare", "first.json", "killed.jsonl")).out
    left = ("--from", "first.jsonl.part", "-o", "rest.json")
    succeeded(planner_cli("build", "slow.json", *left))
    rest = plans.load("rest.json").tasks
    assert any(0 < task.done < 40 for task in rest)
    run_on = ("run", "rest.json", "-o", "first.jsonl", "--resume", "kept", "--save", ".")
    succeeded(executor_cli(*run_on))
    assert runlog.load("first.jsonl").end
    assert not Path("first.jsonl.part").exists()
    sizes = [
        {t.name: t.microbatches for t in part} for part in (plans.load("first.json").tasks, rest)
    ]
    for task in rest:
        (own,) = (one for one in slow() if one.name == task.name)
        done = task.done
        plain = train(own, lambda step, name=own.name, done=done: sizes[step >= done][name])
        assert_saved(f"{task.name}.pt", plain)


def stopped(name: str, tasks: list[Task], task: str, steps: int, **more: Path) -> None:
    """Run the plan of this name, which ends this task where it has so many steps."""

    def stop(one: str, step: int, *_: float | None) -> str:
        return "enough" if one == task and step >= steps else ""

    plan, own = plans.load(f"{name}.json"), {task.name: task for task in tasks}
    options = Options(log=Path(f"{name}.jsonl"), checkpoints=Path("kept"), stop=stop, **more)
    run(plan, [own[planned.name] for planned in plan.tasks], options)


def test_an_earlier_log_still_counts() -> None:
    """Of two runs of the same tasks the later says how far each task is, the earlier of the rest;
    a resumed run's log says from the beginning where its tasks go on."""
    profile(f"{__file__}:short", "short.json")
    succeeded(planner_cli("build", "short.json", "-o", "first.json"))
    stopped("first", short(), "ended", 1)
    profile(f"{__file__}:long", "long.json")
    build = ("build", "long.json", "-o", "rest.json", "--segment-steps", 2)
    succeeded(planner_cli(*build, "--from", "first.jsonl"))
    stopped("rest", long(), "kept", 5, resume=Path("kept"))
    lines = [(line.task, line.step) for line in runlog.load("rest.jsonl").checkpoints]
    assert set(lines[:2]) == {("kept", 3), ("rough", 3)}
    both = ("--from", "first.jsonl", "--from", "rest.jsonl")
    refused(planner_cli(*build, *both), 2, "rest.jsonl: every task of the profile is done")
    succeeded(planner_cli(*build, "--from", "first.jsonl"))
    assert {task.name for task in plans.load("rest.json").tasks} == {"kept", "rough"}


def test_nothing_left_is_said() -> None:
    """A log of a whole run leaves nothing to plan."""
    profile(f"{__file__}:short", "short.json")
    succeeded(planner_cli("build", "short.json", "-o", "first.json"))
    succeeded(executor_cli("run", "first.json", "-o", "first.jsonl", "--checkpoints", "kept"))
    done = planner_cli("build", "short.json", "--from", "first.jsonl", "-o", "rest.json")
    refused(done, 2, "first.jsonl: every task of the profile is done")


def pressed() -> list[Task]:
    """Two tasks; the data of one sends this process the signal in PRESS, at the step said there."""

    def last(step: int) -> tuple[Tensor, Tensor]:
        number, _, at = os.environ.get("PRESS", "").partition("@")
        if at == str(step):
            os.kill(os.getpid(), int(number))
            time.sleep(0.3)  # until the run has heard of it
        return rows(step)

    first, second, _ = tasks(12)
    own = Evaluation(every=6, data=lambda n: rows(100 + n), batches=2)
    return [replace(first, data=last, evaluate=own), second]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profile of those tasks, and a plan whose shards come and go."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        profile(f"{__file__}:pressed", "two.json")
        budget = ("--devices", 2, "--device-memory", smallest_budget("two.json"))
        succeeded(planner_cli("build", "two.json", *budget, "-o", "first.json"))
    return folder


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("kind", "step", "folder"),
    [
        (signal.SIGTERM, 1, "kept"),
        (signal.SIGINT, 3, ""),
        (signal.SIGHUP, 5, "kept"),
        (signal.SIGTERM, 6, "kept"),
        (signal.SIGINT, 9, ""),
    ],
)
def test_an_interrupted_run_goes_on(
    kind: signal.Signals, step: int, folder: str, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal in the middle of a segment ends it behind a whole round of each task: what is
    kept there goes on with the bits of a plain loop, and each evaluation is there once. Without
    --checkpoints it is kept beside the log."""
    monkeypatch.setenv("PRESS", f"{kind}@{step}")
    kept, where = folder or "first.checkpoints", ("--checkpoints", folder) if folder else ()
    run = ("run", two / "first.json", "-o", "first.jsonl", *where)
    said = executor_cli(*run)
    told = f"{kind.name}: tasks end their rounds and are kept in {kept}; a second one ends the run"
    assert said.err.splitlines()[0].startswith(told)
    again = "python -m planner build PROFILE --from first.jsonl -o rest.json && python -m executor"
    again += f" run rest.json --resume {' '.join((kept, *where))}"
    last = f"error: interrupted by {kind.name}; to go on: {again}"
    assert (said.code, said.err.splitlines()[-1]) == (128 + kind, last)
    refused(executor_cli(*run), 2, f"error: {kept} holds ")
    first = runlog.load("first.jsonl")
    assert first.end
    assert (first.end.status, kind.name in first.end.error) == ("interrupted", True)
    monkeypatch.delenv("PRESS")
    build = ("build", two / "two.json", "--from", "first.jsonl", "-o", "rest.json")
    succeeded(planner_cli(*build, "--devices", 2))
    rest = plans.load("rest.json").tasks
    done = {task.name: task.done for task in rest}
    assert step - 2 <= done["kept"] <= step + 2
    succeeded(executor_cli("run", "rest.json", "-o", "r.jsonl", "--resume", kept, "--save", "."))
    logs = [first, runlog.load("r.jsonl")]
    evaluated = [line.step for log in logs for line in log.evaluations]
    assert evaluated == [6, 12]
    sizes = [{t.name: t.microbatches for t in plans.load(two / "first.json").tasks}]
    sizes += [{t.name: t.microbatches for t in rest}]
    for task in pressed():
        plain = train(
            replace(task, evaluate=None),
            lambda step, name=task.name: sizes[step >= done.get(name, 12)][name],
        )
        losses = {
            line.step: line.loss for log in logs for line in log.steps if line.task == task.name
        }
        assert [losses[step] for step in range(12)] == plain.losses
        files = [Path(f"{task.name}.pt"), Path(f"{kept}/{task.name}-12.pt")]
        assert_saved(next(file for file in files if file.exists()), plain)
