"""A run is planned and trained further from where an earlier one left its tasks.

`short` and `long` below are workloads of their own: the same tasks with few and with more steps.
"""

import os
import re
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import chains
from support.chains import chain
from support.cli import executor_cli, planner_cli, profile, refused, smallest_budget, succeeded
from support.forked import ended, started
from support.plain import Plain, train
from support.same import assert_saved, step_in
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


def plain_of(task: Task, *parts: plans.Plan) -> Plain:
    """What a plain loop trains in the microbatches of these plans, of which each goes on where the
    one before was."""
    own = [part.task(task.name) for part in parts if task.name in [t.name for t in part.tasks]]

    def sizes(step: int) -> int:
        return [planned.microbatches for planned in own if planned.done <= step][-1]

    return train(task, sizes)


def test_training_goes_on_from_a_run() -> None:
    """Planned from its folder, and run there: the bits of one long plain loop."""
    profile(f"{__file__}:short", "short.json")
    budget = ("--device-memory", smallest_budget("short.json"))
    succeeded(planner_cli("build", "short.json", "-o", "first.json", *budget))
    succeeded(executor_cli("run", "first.json", "-o", "x"))
    profile(f"{__file__}:long", "long.json")
    budget = ("--device-memory", smallest_budget("long.json"))
    succeeded(planner_cli("build", "long.json", "--from", "x", "-o", "rest.json", *budget))
    succeeded(planner_cli("check", "rest.json"))
    first, rest = plans.load("first.json"), plans.load("rest.json")
    assert [(t.name, t.done, t.steps) for t in rest.tasks] == [("kept", 3, 5), ("rough", 3, 5)]
    refused(executor_cli("run", "rest.json"), 2, "runs/rest/kept.pt: there is no such checkpoint")
    succeeded(executor_cli("run", "rest.json", "-o", "x"))
    steps = [line for log in runlog.files("x") for line in runlog.load(log).steps]
    for task in long()[:2]:
        plain = plain_of(task, first, rest)
        losses = {line.step: line.loss for line in steps if line.task == task.name}
        assert [losses[step] for step in range(8)] == plain.losses
        assert step_in(Path("x"), task.name) == 8
        assert_saved(f"x/{task.name}.pt", plain)


def test_a_task_keeps_its_microbatch() -> None:
    """Going on, whether or not another one would be better; another only where that is let, and
    then plan, `show`, log and report say so."""
    profile(f"{__file__}:short", "short.json")
    profile(f"{__file__}:long", "long.json")
    needs = {size: smallest_budget("long.json", "--microbatch", size) for size in (1, 2)}
    roomy, tight = max(needs, key=needs.__getitem__), min(needs, key=needs.__getitem__)
    assert needs[roomy] > needs[tight]
    for others, own in ((1, 2), (roomy, roomy)):
        sizes = ("--microbatch", f"kept={own}", "--microbatch", others)
        succeeded(planner_cli("build", "short.json", "-o", "first.json", *sizes))
        succeeded(executor_cli("run", "first.json", "-o", "x", "--overwrite"))
        build = ("build", "long.json", "--from", "x", "-o", "rest.json")
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
    told = succeeded(executor_cli("run", "rest.json", "-o", "x")).out
    assert told.count(f"has {tight} and had {roomy} up to step 3: the last bits") == len(changed)
    header = runlog.load("x").header
    assert header.earlier_microbatch == changed
    assert header.microbatch == {t.name: t.microbatch for t in rest}


def slow() -> list[Task]:
    def late(step: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.02)
        return rows(step)

    own = Evaluation(every=8, data=lambda n: rows(100 + n), batches=1)
    first, second, _ = tasks(40)
    return [replace(first, data=late, evaluate=own), replace(second, data=late)]


def logged(folder: str) -> list[object]:
    """Each op, step and evaluation of a run, with its loss."""
    log = runlog.load(folder)
    found: list[object] = [(op.segment, op.op, op.round) for op in log.ops]
    found += [(type(line).__name__, line.task, line.step, line.loss) for line in log.steps]
    found += [(type(line).__name__, line.task, line.step, line.loss) for line in log.evaluations]
    return sorted(map(str, found))


def test_a_killed_run_goes_on() -> None:
    """Killed twice with SIGKILL, the same command goes on: the plain loop's bits, and each op, step
    and evaluation once in the log of one run. What is left can be planned anew, too."""
    profile(f"{__file__}:slow", "slow.json")
    succeeded(planner_cli("build", "slow.json", "--segment-steps", 5, "-o", "first.json"))
    for number, until in enumerate((15, 25)):
        process = started(["-m", "executor", "run", "first.json", "-o", "x"], Path("said"))
        while process.is_alive() and not _past("x", until):
            time.sleep(0.04)
        process.kill()
        assert ended(process) == -signal.SIGKILL
        said = Path("said").read_text()
        assert said.count("warning: x: goes on with kept after step ") == number, said
    log = runlog.load("x")
    assert log.ops
    assert log.end is None
    assert "run killed" in succeeded(planner_cli("compare", "first.json", "x")).out
    shutil.copytree("x", "y")
    succeeded(executor_cli("run", "first.json", "-o", "x"))
    succeeded(executor_cli("run", "first.json", "-o", "whole"))
    assert logged("x") == logged("whole")
    assert len(runlog.load("x").restarts) == 2
    succeeded(planner_cli("build", "slow.json", "--from", "y", "-o", "rest.json"))
    succeeded(executor_cli("run", "rest.json", "-o", "y"))
    first, rest = plans.load("first.json"), plans.load("rest.json")
    assert any(0 < task.done < 40 for task in rest.tasks)
    for task in slow():
        never = replace(task, evaluate=None)
        assert_saved(f"x/{task.name}.pt", plain_of(never, first))
        assert_saved(f"y/{task.name}.pt", plain_of(never, first, rest))


def _past(folder: str, step: int) -> bool:
    """True once a state of so many steps is in the folder's log."""
    log = Path(folder, runlog.LOG)
    return log.exists() and any(line.step >= step for line in runlog.load(log).checkpoints)


def stopped(name: str, tasks: list[Task], task: str, steps: int) -> None:
    """Run the plan of this name in folder x, which ends this task where it has so many steps."""

    def stop(one: str, step: int, *_: float | None) -> str:
        return "enough" if one == task and step >= steps else ""

    plan, own = plans.load(f"{name}.json"), {task.name: task for task in tasks}
    run(plan, [own[planned.name] for planned in plan.tasks], Options(folder=Path("x"), stop=stop))


def test_what_a_rule_ended_is_not_planned_again() -> None:
    """Nor what is done, whichever of a folder's logs has it; when nothing is left, that is said."""
    profile(f"{__file__}:short", "short.json")
    succeeded(planner_cli("build", "short.json", "-o", "first.json"))
    stopped("first", short(), "ended", 1)
    done = planner_cli("build", "short.json", "--from", "x", "-o", "rest.json")
    refused(done, 2, "x: every task of the profile is done")
    profile(f"{__file__}:long", "long.json")
    build = ("build", "long.json", "-o", "rest.json", "--segment-steps", 2)
    succeeded(planner_cli(*build, "--from", "x"))
    assert {task.name for task in plans.load("rest.json").tasks} == {"kept", "rough"}
    stopped("rest", long(), "kept", 5)
    refused(planner_cli(*build, "--from", "x"), 2, "x: every task of the profile is done")


def pressed() -> list[Task]:
    """Two tasks; the data of one sends this process the signal in PRESS, at the step said there."""

    def last(step: int) -> tuple[Tensor, Tensor]:
        number, _, at = os.environ.get("PRESS", "").partition("@")
        if at == str(step):
            time.sleep(float(os.environ.get("LATE", "0")))
            os.kill(os.getpid(), int(number))
            time.sleep(float(os.environ.get("HOLD", "0.3")))  # until the run has heard of it
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
def test_a_round_has_no_longer_than_the_grace(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun when the signal comes, and its data come four seconds later: the run ends
    before, and says in which op."""
    monkeypatch.setenv("PRESS", f"{signal.SIGTERM}@5")
    monkeypatch.setenv("LATE", "1")
    monkeypatch.setenv("HOLD", "4")
    begun = time.monotonic()
    said = executor_cli("run", two / "first.json", "-o", "x", "--grace", "0.5")
    assert time.monotonic() - begun < 5
    assert said.err.startswith("SIGTERM: tasks end their rounds within 0.5 s and are kept in x; a ")
    assert said.code == 128 + signal.SIGTERM
    assert re.match(
        r"error: interrupted in \S+.*, 0\.5 s after SIGTERM; ", said.err.splitlines()[-1]
    )


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("kind", "step"), [(signal.SIGTERM, 1), (signal.SIGINT, 6)])
def test_an_interrupted_run_goes_on(
    kind: signal.Signals, step: int, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal in the middle of a segment ends it behind a whole round of each task: by the same
    command, and by a plan of the rest, it goes on with the bits of a plain loop, and each
    evaluation is there once."""
    monkeypatch.setenv("PRESS", f"{kind}@{step}")
    run = ("run", two / "first.json", "-o", "x")
    said = executor_cli(*run)
    told = f"{kind.name}: tasks end their rounds and are kept in x; a second one ends the run"
    assert said.err.splitlines()[0].startswith(told)
    last = f"error: interrupted by {kind.name}; the same command goes on from the states that are "
    assert (said.code, said.err.splitlines()[-1]) == (128 + kind, f"{last}kept")
    end = runlog.load("x").end
    assert end
    assert (end.status, kind.name in end.error) == ("interrupted", True)
    monkeypatch.delenv("PRESS")
    assert step - 2 <= step_in(Path("x"), "kept") <= step + 2
    shutil.copytree("x", "y")
    succeeded(executor_cli(*run))
    build = ("build", two / "two.json", "--from", "y", "-o", "rest.json", "--devices", 2)
    succeeded(planner_cli(*build))
    succeeded(executor_cli("run", "rest.json", "-o", "y"))
    first, rest = plans.load(two / "first.json"), plans.load("rest.json")
    for folder, parts in (("x", [first]), ("y", [first, rest])):
        logs = [runlog.load(path) for path in runlog.files(folder)]
        assert [line.step for log in logs for line in log.evaluations] == [6, 12]
        for task in pressed():
            plain = plain_of(replace(task, evaluate=None), *parts)
            steps = [line for log in logs for line in log.steps if line.task == task.name]
            assert [line.loss for line in sorted(steps, key=lambda s: s.step)] == plain.losses
            assert_saved(f"{folder}/{task.name}.pt", plain)
