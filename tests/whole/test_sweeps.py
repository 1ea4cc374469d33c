"""`tune` trains sweeps: rung by rung, to the bits of single tasks, going on after any end."""

import json
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from support.cli import Answer, executor_cli, planner_cli, refused, succeeded
from support.forked import ended, started
from support.plain import train
from support.same import assert_saved

import executor.cli
import plans
from executor import tuning
from executor.workload import load
from plans import runlog

pytestmark = pytest.mark.usefixtures("alone", "untimed")

ROOT = Path(plans.__file__).parents[1]
MACHINE = ("--device-memory", "1MiB", "--devices", 2, "--samples", 1, "--slow-compute", 1)
WORK = """
import json
import torch
from functools import partial
from pathlib import Path
from support.chains import chain, rows
from executor import Evaluation, Sweep

def trial(name, lr, steps=8):
    judged = Evaluation(every=2, data=lambda n: rows(2, 100 + n), batches=1)
    return chain(name, 2, 2, steps, evaluate=judged, optimizer=partial(torch.optim.AdamW, lr=lr))

LR = 1e-4, 1e-2, 1e-3, 3e-4, 3e-3

def sweep():
    configs = [{"lr": lr} for lr in LR]
    return Sweep(configs, task=trial, rungs=(2, 4, 8), keep=1 / 2, metric="val_loss")

def tasks():
    return sweep().tasks()
"""

LR, FEW = "LR = 1e-4, 1e-2, 1e-3, 3e-4, 3e-3", "LR = 1e-4, 1e-2, 1e-3"
ONE = ("--devices", 1)  # planning for more takes other processes long


@pytest.fixture(autouse=True)
def _work(here: None) -> None:
    Path("work.py").write_text(WORK)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the tests' own process would start are calls in it."""

    def called(command: Sequence[str], **_: object) -> SimpleNamespace:
        cli = {"planner": planner_cli, "executor": executor_cli}[command[2]]
        found = cli(*command[3:])
        return SimpleNamespace(returncode=found.code, stdout=found.out, stderr=found.err)

    monkeypatch.setattr(subprocess, "run", called)


def tuned(ref: str = "work.py:sweep", *more: object, folder: str = "x") -> Any:
    """What the command prints as JSON."""
    return json.loads(succeeded(tune(ref, *more, "--json", folder=folder)).out)


def tune(ref: str, *more: object, folder: str = "x") -> Answer:
    """The command, in this process."""
    return executor_cli("tune", ref, *MACHINE, *more, "-o", folder)


def assert_as_alone(ref: str, name: str, folder: str = "x") -> None:
    """The task's state is that of a plain loop, in its microbatches."""
    task = next(one for one in load(ref)[0] if one.name == name)
    planned = plans.load(Path(folder, "plan.json")).task(name)
    assert_saved(Path(folder, f"{name}.pt"), train(task, planned.microbatches))


def test_the_sweep_of_the_page() -> None:
    """Its file, of at most 30 lines, as it stands but for the steps; the table says who was stopped
    where, and who came to the end has the bits of a task alone."""
    code = (ROOT / "docs" / "sweep.py").read_text()
    assert len([line for line in code.splitlines() if line]) <= 30
    function = (ROOT / "docs" / "sweeps.md").read_text().split("```python\n")[1].split("```")[0]
    assert code.endswith(function)
    for told, short in (("10_000", "99"), ("00", ""), ("batches=4", "batches=1")):
        assert told in code
        code = code.replace(told, short)
    Path("my.py").write_text(code)
    answer = succeeded(tune("my.py:sweep", *ONE))
    assert "val_loss@1" in answer.out
    assert answer.out.count("stopped at 1, ") == 4
    assert answer.out.count("stopped at 3, ") == 1
    best = next(line.split()[0] for line in answer.out.splitlines() if line.endswith("  best"))
    assert_as_alone("my.py:sweep", best)
    assert "rung 2 of 3: 2 task(s) up to step 3: " in answer.err
    told = ["profiling 6 task(s)", "planning 6 task(s) up to step 1", "planning 2 task(s) up to "]
    assert [one for one in told if one not in answer.err] == []
    assert "whole sweep: predicted " in answer.out


@pytest.mark.usefixtures("within")
def test_a_killed_sweep_goes_on() -> None:
    """Killed in each of its rungs, and asked again when it is done: standings and bits of one that
    ran through."""
    Path("work.py").write_text(WORK.replace("rows(2,", "late(2,").replace(LR, FEW) + LATE)
    for rung in range(3):
        process = started(
            ["-m", "executor", "tune", "work.py:sweep", *MACHINE, *ONE, "-o", "x"], Path("said")
        )
        while process.is_alive() and not _begun(rung):
            time.sleep(0.03)
        process.kill()
        assert ended(process) == -signal.SIGKILL, Path("said").read_text()
    found = tuned("work.py:sweep", *ONE)
    Path("y").mkdir()
    shutil.copy("x/profile.json", "y")  # another may choose other microbatches
    whole = tuned("work.py:sweep", *ONE, folder="y")
    for rows in (found["tasks"], whole["tasks"]):
        for row in rows:
            del row["device_us"]
    assert found["tasks"] == whole["tasks"]
    assert_as_alone("work.py:sweep", found["tasks"][0]["task"])
    assert tuned("work.py:sweep", *ONE)["tasks"][0]["ended"] == "best"


TRIAL, MORE = (
    WORK[: WORK.index("def tasks")],
    """
def tasks():
    return [trial("more", 2e-2)]
""",
)


@pytest.mark.usefixtures("within")
def test_tasks_are_added_while_a_sweep_goes_on() -> None:
    """They train from the next rung on, also where the sweep is killed in it; with the bits that
    they have alone."""
    Path("more.py").write_text(TRIAL + MORE)
    Path("work.py").write_text(WORK.replace("rows(2,", "late(2,").replace(LR, FEW) + LATE)
    sweep = ["tune", "work.py:sweep", *MACHINE, *ONE, "-o", "x"]
    for rung in range(2):
        process = started(["-m", "executor", *sweep], Path("said"))
        while process.is_alive() and not _begun(rung):
            time.sleep(0.03)
        if not rung:
            said = succeeded(executor_cli(*sweep, "--add", "more.py:tasks")).out
            assert said == "added: more; from the next rung on\n"
        process.kill()
        ended(process)
    rows = {row["task"]: row for row in tuned("work.py:sweep", *ONE)["tasks"]}
    assert next(iter(rows["more"]["metric"])) == "4"
    assert_as_alone("more.py:tasks", "more")
    refused(executor_cli(*sweep, "--add", "more.py:tasks"), 2, "has a task more already")


@pytest.mark.usefixtures("within")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("more", "t0"), "the sweep has a task t0 already; give it another name"),
        (("tasks", "others"), "more.py has no function 'tasks'"),
        (("trial(", "nothing("), "tasks() raised NameError"),
        (("2e-2)", "2e-2, 3)"), "more has 3 steps, the last rung is 8"),
        (("2e-2)", "2e-2, 8, 5)"), "tasks() raised TypeError"),
        (("", ""), "x: holds no sweep that has begun"),
    ],
)
def test_tasks_that_cannot_be_added_are_refused(change: tuple[str, str], said: str) -> None:
    """Where they are added, and nothing is written for the run."""
    Path("more.py").write_text(TRIAL + (MORE.replace(*change) if change[0] else MORE))
    answer = executor_cli("tune", "work.py:sweep", *MACHINE, "-o", "x", "--add", "more.py:tasks")
    refused(answer, 2, said)
    assert not Path("x").exists()


LATE = """
import time

def late(*given):
    time.sleep(0.03)
    return rows(*given)
"""


def _begun(rung: int) -> bool:
    """True once the run of this rung has trained a step."""
    logs = [log for log in runlog.files("x") if log.exists()]
    return len(logs) > rung and bool(runlog.load(logs[-1]).steps)


@pytest.mark.usefixtures("within")
def test_settings_that_are_added_join_at_the_next_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are profiled, trained from their first step, and compared there."""
    plain = executor.cli.run

    def run(*given: Any) -> Any:
        Path("work.py").write_text(WORK.replace("3e-3\n", "3e-3, 5e-3\n"))
        return plain(*given)

    monkeypatch.setattr(executor.cli, "run", run)
    rows = {row["task"]: row for row in tuned()["tasks"]}
    assert next(iter(rows["t5"]["metric"])) == "4"
    assert {task.name: task.done for task in plans.load("x/rung-1.json").tasks}["t5"] == 0
    assert len(rows) == 6


@pytest.mark.usefixtures("within")
def test_a_task_that_fails_is_not_kept() -> None:
    """The others go on; where all have failed the sweep ends in one line."""
    Path("work.py").write_text(WORK.replace(LR, "LR = 1e30, 1e-3"))
    rows = {row["task"]: row for row in tuned()["tasks"]}
    assert rows["t0"]["ended"].startswith("failed in step 1: ")
    assert rows["t1"]["ended"] == "best"
    Path("work.py").write_text(WORK.replace(LR, "LR = 1e30, 1e31"))
    answer = tune("work.py:sweep", folder="y")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("error: y: all tasks of the sweep have failed")


@pytest.mark.usefixtures("within")
def test_tasks_are_a_sweep_by_flags() -> None:
    """With rungs they are compared; a sweep says its own."""
    found = tuned("work.py:tasks", "--rungs", "4,8", "--keep", "1/5", "--mode", "max")
    assert [rung["tasks"] for rung in found["rungs"]] == [5, 1]
    assert (found["metric"], found["mode"]) == ("loss", "max")
    refused(tune("work.py:tasks"), 2, "returned list, no executor.Sweep; return one, or add")
    refused(tune("work.py:sweep", "--keep", "1/2"), 2, "its sweep says its own keep; leave out")


@pytest.mark.usefixtures("within")
def test_what_cannot_be_planned_ends_as_build_does() -> None:
    """Exit code and line are those of the planner; nothing but the profile is left."""
    answer = executor_cli("tune", "work.py:sweep", "--device-memory", "1KiB", "-o", "x")
    assert answer.code == 3
    assert answer.err.splitlines()[-1].startswith("error: planning up to step 2: infeasible: ")
    assert [path.name for path in Path("x").iterdir()] == ["profile.json"]


def test_an_interrupted_sweep_says_how_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it profiles or plans."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning.Tuning, "run", interrupted)
    told = "error: interrupted; the same command goes on from where it ended\n"
    assert tune("work.py:sweep") == Answer(130, "", told)


@pytest.mark.usefixtures("within")
def test_a_folder_of_another_sweep_is_refused() -> None:
    tuned()
    Path("work.py").write_text(WORK.replace("rungs=(2, 4, 8)", "rungs=(4, 8)"))
    refused(tune("work.py:sweep"), 2, "rung-0.json: plans t0 up to another step than 4")


class Study:
    """Stands for one of Optuna: asks and tells as its documentation says."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.told: list[tuple[Any, object, object]] = []

    def ask(self) -> Any:
        number, reports = len(self.asked), dict[int, float]()
        trial = SimpleNamespace(
            suggest_float=lambda name, low, high, log: low * (high / low) ** (number % 7 / 7),
            suggest_int=lambda name, low, high: low + number % 2,
            report=lambda value, step: reports.update({step: value}),
            reports=reports,
            params={"number": number},
        )
        self.asked.append(trial)
        return trial

    def tell(self, trial: Any, value: object = None, state: object = None) -> None:
        self.told.append((trial, value, state))

    @property
    def best_trial(self) -> Any:
        return next(trial for trial, value, _ in self.told if value is not None)


@pytest.mark.usefixtures("within")
def test_the_example_of_a_chooser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial is told once: those at the end with their value, the others as pruned, with what
    they had."""
    study, states = Study(), SimpleNamespace(PRUNED="pruned", FAIL="fail")
    fake = SimpleNamespace(create_study=lambda: study, trial=SimpleNamespace(TrialState=states))
    monkeypatch.setitem(sys.modules, "optuna", fake)  # type: ignore[arg-type]
    runpy.run_path(str(ROOT / "docs" / "optuna_sweep.py"))["main"](turns=1, count=4)
    assert sorted(t.params["number"] for t, *_ in study.told) == list(range(4))
    assert [state for *_, state in study.told] == [None, *3 * ["pruned"]]
    assert sum(len(trial.reports) for trial in study.asked) == 4 + 2 + 1
