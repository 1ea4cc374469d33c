"""`gantry` begins every command; `gantry train` does all of them, and goes on after any end."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from support.chains import chain
from support.cli import Answer, executor_cli, planner_cli, refused, succeeded
from support.cli import _call as called
from support.forked import ended, started
from support.plain import train
from support.same import assert_saved

import executor.cli
import planner.cli.parser
import plans
from executor.workload.task import Task
from plans import runlog
from profiles import gantry, training

ROOT = Path(plans.__file__).parents[1]
QUICK = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1, "--slow-compute", 1)


def work() -> list[Task]:
    """What WORK says."""
    return [chain("a", 2, 2, 40), chain("b", 2, 2, 40, seed=1)]


WORK = """
from support.chains import chain
def tasks():
    return [chain("a", 2, 2, 40), chain("b", 2, 2, 40, seed=1)]
"""


@pytest.fixture
def within(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the tests' own process would start are calls in it."""

    def run(command: Sequence[str], **_: object) -> SimpleNamespace:
        cli = {"planner": planner_cli, "executor": executor_cli}[command[2]]
        answer = cli(*command[3:])
        print(answer.err, file=sys.stderr)
        return SimpleNamespace(returncode=answer.code, stdout=answer.out)

    monkeypatch.setattr(subprocess, "run", run)
    Path("work.py").write_text(WORK)


def trained(*options: object) -> Answer:
    """`gantry train`, which becomes the run by a call."""

    def become(package: str, words: list[str]) -> int:
        answer = executor_cli(*words)
        print(answer.out)
        print(answer.err, file=sys.stderr)
        return answer.code

    words = ("work.py:tasks", *QUICK, "-o", "x", *options)
    return called(lambda given: training.main(given, become), words)  # type: ignore[arg-type]


def test_every_command_is_known() -> None:
    """Those of both packages, each once."""
    for package, cli in (("planner", planner.cli.parser), ("executor", executor.cli)):
        actions = cli._parser()._subparsers._group_actions  # type: ignore[union-attr]
        (commands,) = (one for one in actions if isinstance(one, argparse._SubParsersAction))
        assert sorted(gantry.OF[package]) == sorted(commands.choices)


def test_a_command_begins_as_of_its_package(capsys: pytest.CaptureFixture[str]) -> None:
    """Without torch, with its exit code; one that is not there is refused."""
    script = (
        "import sys, profiles.gantry as g; assert 'torch' not in sys.modules; sys.exit(g.main())"
    )
    for plan, code in (("sample.json", 0), ("sample-none.json", 2)):
        command = [sys.executable, "-c", script, "check", str(ROOT / "plans" / plan)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout.startswith("ok: ")) == (code, not code), done.stderr
    assert gantry.main(["trian"]) == 2
    assert capsys.readouterr().err == "error: there is no command 'trian'; see gantry --help\n"


def test_the_command_is_installed() -> None:
    """By the name that the pages say."""
    assert 'gantry = "profiles.gantry:main"' in (ROOT / "pyproject.toml").read_text()


def _started() -> BaseProcess:
    command = ["-m", "profiles.gantry", "train", "work.py:tasks", *QUICK, "-o", "x"]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))  # of the processes it starts, too
    return started(command, Path("out.txt"), PYTHONPATH=path)


def _killed(file: Path) -> None:
    """Start the command, and kill it as soon as this file is there."""
    process = _started()
    while not file.exists():
        assert process.is_alive(), Path("out.txt").read_text()
        time.sleep(0.005)
    process.kill()
    process.join()


@pytest.mark.slow
@pytest.mark.usefixtures("alone", "untimed", "here")
def test_killed_at_any_step_it_goes_on() -> None:
    """While it plans, and while it runs: what is there is used, the bits are those of one go."""
    Path("work.py").write_text(WORK)
    folder = Path("x")
    _killed(folder / "profile.json")
    measured = (folder / "profile.json").read_bytes()
    _killed(folder / "log.jsonl")
    planned = (folder / "plan.json").read_bytes()
    assert ended(_started()) == 0, Path("out.txt").read_text()
    assert (folder / "profile.json").read_bytes() == measured
    assert (folder / "plan.json").read_bytes() == planned
    assert "x: goes on" in Path("out.txt").read_text()
    assert len(runlog.load(folder).restarts) == 1
    plan = plans.load(folder / "plan.json")
    for task in work():
        assert_saved(folder / f"{task.name}.pt", train(task, plan.task(task.name).microbatches))


@pytest.mark.usefixtures("alone", "untimed", "within")
def test_steps_whose_files_do_are_left_out() -> None:
    """Another word of build plans again, another workload measures again, none does neither."""
    files = [Path("x/profile.json"), Path("x/plan.json")]

    def again(*options: object) -> list[bool]:
        before = [path.read_bytes() for path in files]
        succeeded(trained("--overwrite", *options))
        return [path.read_bytes() != data for path, data in zip(files, before, strict=True)]

    answer = succeeded(trained("--json"))
    assert json.loads(answer.out)
    assert "wrote x/plan.json in" in answer.err
    assert again() == [False, False]
    assert again("--microbatch", 1) == [False, True]
    Path("work.py").write_text(WORK.replace("40)", "41)"))
    assert again("--microbatch", 1) == [True, True]


@pytest.mark.usefixtures("alone", "untimed", "within")
def test_a_run_that_has_begun_is_not_replanned() -> None:
    """Other options are refused, another workload by the run itself; nothing changes."""
    succeeded(trained())
    before = Path("x/plan.json").read_bytes()
    refused(trained("--microbatch", 1), 2, "x: its run was begun with other options")
    Path("work.py").write_text(WORK.replace("40)", "41)"))
    assert "profile and build again" in trained().err
    assert Path("x/plan.json").read_bytes() == before


@pytest.mark.usefixtures("alone", "untimed", "within")
def test_a_run_has_a_page_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of how it ended; one that cannot be written is told, and ends nothing."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    succeeded(trained("--report", "r.html"))
    assert b"The run ended well after" in Path("r.html").read_bytes()
    told = succeeded(trained("--overwrite", "--report", "x/plan.json")).err
    assert "x/plan.json: was not written" in told


@pytest.mark.usefixtures("alone", "untimed", "within")
def test_the_first_that_fails_ends_it() -> None:
    """With its exit code: a bad file, a plan that is not feasible."""
    assert trained("--device-memory", "none").code == 2
    assert trained("--device-memory", "600B").code == 3
    assert not Path("x/plan.json").exists()
