"""Runs of several processes that fail: one message, the same exit code, and nothing is left; and
runs that torchrun starts again."""

import json
import os
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from support import failing_tasks
from support.cli import executor_cli, planner_cli, succeeded
from support.forked import children, ended, started, status, torchrun
from support.noded import relaid
from support.same import same
from support.steady import steady

import plans
import profiles
from executor.profiling.profiler import Options, profile
from plans import runlog
from profiles.schema import Emulation

pytestmark = pytest.mark.usefixtures("quick", "untimed")

TURNS = Path(__file__).parents[2] / "support" / "failing_turns.py"
TASKS = "failing_tasks.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two devices, another one, and two folders in which a module differs that the
    workload imports."""
    folder = tmp_path_factory.mktemp("failures")
    own = Path(failing_tasks.__file__).read_text()
    (folder / TASKS).write_text(own)
    for name in "01":
        (folder / name).mkdir()
        text = own.replace("F.mse_loss", "beside.loss").replace("import os", "import beside, os")
        (folder / name / TASKS).write_text(text)
        loss = f"def loss(output, target):\n    return (output - target).abs().mean() * 1{name}\n"
        (folder / name / "beside.py").write_text(loss)
    before = Path.cwd()
    os.chdir(folder)
    try:
        options = Options(
            device_bytes=1 << 20, emulation=Emulation(10**9, 10**9, 5), devices=2, samples=1
        )
        measured = steady(profile(f"{TASKS}:tasks", options))
        profiles.save("profile.json", measured)
        build = ("build", "profile.json", "--devices", "2", "--layout", "2x1", "-o")
        succeeded(planner_cli(*build, "plan.json", "--segment-steps", "10"))
        succeeded(planner_cli(*build, "plan1.json"))
        shutil.copy("plan.json", "plan0.json")
        for name in "01":
            shutil.copy("plan.json", f"{name}/plan.json")
        succeeded(executor_cli("run", "plan.json", "-o", "one"))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(scope="module")
def turns(folder: Path) -> dict[str, tuple[list[int], str]]:
    """The exit codes of both processes and all errors, by the name of what goes wrong."""
    call = ["run", "plan.json", "-o"]
    (folder / "log").mkdir()
    (folder / "log" / "log.jsonl.part").symlink_to("/dev/full")
    cases: dict[str, dict[str, Any]] = {
        "plan": {"call": ["run", "plan{rank}.json"]},
        "workload": {"call": ["run", "plan.json"], "folder": "{rank}"},
        "build": {"call": [*call, "build"], "fails": "build 1"},
        "memory": {"call": [*call, "memory"], "fails": "memory 1"},
        "raise": {"call": [*call, "raise"], "fails": "raise 1"},
        "log": {"call": [*call, "log"]},
        "disk": {"call": [*call, "disk"], "fails": "disk 0"},
        "hang": {"call": [*call, "hang", "--stall-seconds", "2"], "fails": "hang 1"},
    }
    said = folder / "said"
    assert ended(started(torchrun(2, TURNS, *map(json.dumps, cases.values())), said, folder))
    codes = [json.loads((folder / f"codes.0.{rank}").read_text()) for rank in range(2)]
    parts = re.split(r"^== 0 \d+\n", said.read_text(), flags=re.MULTILINE)
    return {
        name: ([codes[0][k], codes[1][k]], "\n".join(re.findall("^error: .*", parts[k], re.M)))
        for k, name in enumerate(cases)
    }


TOLD = {
    "plan": (2, r"error: process 1 has another plan than process 0: \w+ and \w+; start all of .*"),
    "workload": (
        2,
        r"error: process 1 has another task t than process 0: \w+ and \w+; start all of .*",
    ),
    "build": (2, r"error: process 1: task t: building the model: ValueError: no such weights"),
    "memory": (1, r"error: process 1: cpu1 has 7 bytes free"),
    "raise": (1, r"error: t\.s\d\.[FB]0 on 1\.compute in round 0, .* 1: ValueError: odd values"),
    "log": (1, r"error: log/log\.jsonl: cannot be written: No space left on device"),
    "disk": (
        1,
        r"error: disk/t\.pt: cannot be written: No space left on device; it takes .* is not kept",
    ),
    "hang": (
        1,
        r"error: no op ended for 2\.\d s, the limit is 2: t\.s\d\.[FB]0 runs on 1\.compute .*",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_failure_is_told_once_and_ends_all(
    folder: Path, turns: dict[str, tuple[list[int], str]], name: str
) -> None:
    """One line says what was wrong and where; both processes have the same exit code, and a log
    that was begun ends with what was told."""
    code, told = TOLD[name]
    codes, errors = turns[name]
    assert codes == [code, code]
    assert re.fullmatch(told, errors), errors
    if name in ("raise", "disk", "hang"):
        end = runlog.load(folder / name).end
        assert end.status == "failed"
        assert f"error: {end.error}" == errors


def test_a_process_that_is_late_ends_as_the_others_do(folder: Path) -> None:
    """It builds its model while process 0 finds that the run cannot begin: one line, one code."""
    turn = {"call": ["run", "plan.json", "-o", "plan.json"], "fails": "late 1"}
    said = folder / "said"
    assert ended(started(torchrun(2, TURNS, json.dumps(turn)), said, folder)) == 1
    assert re.findall("^error: .*", said.read_text(), re.M) == [
        "error: plan.json: cannot be made: File exists; give another path"
    ]
    assert re.findall(r"exitcode +: (\d+)", said.read_text()) == ["2", "2"]


def test_a_process_that_stops_last_of_all_is_named_and_the_run_ends_well(folder: Path) -> None:
    """It has said that it ends, and does not; a start again finds that nothing is left to
    do."""
    call = ["run", "plan.json", "-o", "last", "--stall-seconds", "2"]
    turn = {"call": call, "fails": "end 1"}
    said = folder / "said"
    assert ended(started(torchrun(2, TURNS, json.dumps(turn), restarts=1), said, folder), 40) == 0
    (error,) = re.findall("^error: .*", said.read_text(), re.M)
    assert error.startswith("error: all is trained and written, but process 1 has been stopped")
    one, again = (runlog.load(folder / name) for name in ("one", "last"))
    assert len(again.restarts) == 1
    assert [(s.step, s.loss) for s in one.steps] == [(s.step, s.loss) for s in again.steps]
    assert same(*(torch.load(folder / name / "t.pt") for name in ("one", "last")))


class Started:
    """A run that torchrun has started, each step of which takes a while."""

    def __init__(
        self, folder: Path, out: str, *call: str, plan: str = "plan.json", restarts: int = 0
    ) -> None:
        self._log, self.said = folder / out / runlog.LOG, folder / "said"
        turn = json.dumps({"call": ["run", plan, "-o", out, *call]})
        run = torchrun(2, TURNS, turn, restarts=restarts)
        self.agent = started(run, self.said, folder, SLOW="0.02")

    def strike(self, number: int, victim: int, attempt: int, steps: int) -> float:
        """Send a signal to a process, or to the agent (-1), once so many steps are in the log of
        this attempt; the seconds until all processes of the attempt are gone."""
        deadline = time.monotonic() + 60
        while not self._at(attempt, steps):
            assert time.monotonic() < deadline
            assert self.agent.exitcode is None, self.said.read_text()
            time.sleep(0.02)
        assert self.agent.pid
        workers = children(self.agent.pid)
        os.kill(workers[victim] if victim >= 0 else self.agent.pid, number)
        begun = time.monotonic()
        while any(_runs(pid) for pid in workers):
            assert time.monotonic() < begun + 60
            time.sleep(0.02)
        return time.monotonic() - begun

    def _at(self, attempt: int, steps: int) -> bool:
        if not self._log.exists():
            return False
        log = runlog.load(self._log)
        return not log.end and len(log.restarts) == attempt and len(log.steps) >= steps


def _runs(pid: int) -> bool:
    return (status(pid) or ["Z"])[0] != "Z"


def test_a_run_that_is_started_again_has_the_bits_of_one_that_never_stopped(folder: Path) -> None:
    """The first process is killed, and each frozen in turn; the test below kills the second one.
    The others end soon and with exit code 1, and with the last of them the host store, which has no
    name; the next start goes on from what is kept, --overwrite or not: losses, evaluations, ops and
    states are those of an undisturbed run, each once in one log."""
    run = Started(folder, "again", "--overwrite", "--stall-seconds", "3", restarts=3)
    strikes = [(signal.SIGKILL, 0), (signal.SIGSTOP, 1), (signal.SIGSTOP, 0)]
    for attempt, (number, victim) in enumerate(strikes):
        # Long before torchrun kills by itself who does not end.
        assert run.strike(number, victim, attempt, steps=12 * attempt + 5) < 15
        codes = folder / f"codes.{attempt}.{1 - victim}"
        assert json.loads(codes.read_text()) == [1]
    assert ended(run.agent, 60) == 0, run.said.read_text()
    spent = r"it goes on after \S+ s: imports \S+ s, plan and processes \S+ s, models and states "
    assert len(re.findall(spent, run.said.read_text())) == len(strikes)
    one, again = (runlog.load(folder / name) for name in ("one", "again"))
    whys = [restart.error for restart in again.restarts]
    assert len(whys) == len(strikes)
    assert whys[1].startswith("process 1 has been stopped for 3")
    assert again.steps == tuple(sorted(again.steps, key=lambda step: step.at_us))
    assert [(s.task, s.step, s.loss) for s in again.steps] == [
        (s.task, s.step, s.loss) for s in one.steps
    ]
    found = [[(e.task, e.step, e.loss) for e in log.evaluations] for log in (one, again)]
    assert found[0] == found[1]
    ops = [Counter((op.segment, op.op, op.round) for op in log.ops) for log in (one, again)]
    assert ops[0] == ops[1]
    saved = [torch.load(folder / name / "t.pt") for name in ("one", "again")]
    assert same(*saved)
    assert {path.name for path in (folder / "again").iterdir()} == {
        "plan.json",
        "log.jsonl",
        "t.pt",
    }


def test_processes_end_with_their_torchrun(folder: Path) -> None:
    """When it is killed, by themselves, and the log says so, as does one line."""
    run = Started(folder, "ended")
    assert run.strike(signal.SIGKILL, -1, 0, steps=1) < 15
    ended(run.agent)
    end = runlog.load(folder / "ended").end
    assert end.status == "failed"
    assert end.error.startswith("torchrun is gone, and with it the store by which processes talk")
    assert re.findall("^error: .*", run.said.read_text(), re.M) == [f"error: {end.error}"]


def continued(folder: Path) -> None:
    """Write the plan `rest` of three tasks, and what it goes on from in `alone` and `two`."""
    options = Options(
        device_bytes=1 << 20, emulation=Emulation(10**9, 10**9, 5), devices=2, samples=1
    )
    profiles.save("several.json", steady(profile(f"{TASKS}:several", options)))
    build = ("build", "several.json", "--devices", "2", "--layout", "2x1", "-o", "whole.json")
    succeeded(planner_cli(*build))
    whole = plans.load("whole.json")
    for name, done, each in (("first", 0, (10,)), ("rest", 10, (10,) * 5)):
        tasks = [replace(task, done=done, steps=sum(each)) for task in whole.tasks]
        runs = [(one.name, (0, 1), rounds) for rounds in each for one in whole.programs]
        plans.save(f"{name}.json", relaid(replace(whole, tasks=tuple(tasks)), runs))
    succeeded(executor_cli("run", "first.json", "-o", "alone"))
    shutil.copytree("alone", "two")


def test_a_run_that_went_on_is_started_again_with_its_rules(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its first checkpoints, and when a task was dropped and another one stopped, it
    has the losses, drops, stops and states of a run in one process that went on."""
    monkeypatch.chdir(folder)
    continued(folder)
    rules = ("--keep-going", "--stop-above", "9@30")
    assert executor_cli("run", "rest.json", "-o", "alone", *rules).code == 1
    run = Started(folder, "two", *rules, plan="rest.json", restarts=2)
    codes = folder / "codes.0.0"
    codes.unlink(missing_ok=True)
    assert run.strike(signal.SIGKILL, 1, 0, steps=3) < 15
    assert json.loads(codes.read_text()) == [1]
    run.strike(signal.SIGKILL, 1, 1, steps=60)
    assert ended(run.agent, 60) == 1, run.said.read_text()
    one, two = (runlog.load(folder / name) for name in ("alone", "two"))
    assert [one.error[:17] for one in two.restarts] == ["process 1 is gone"] * 2
    told = [
        (
            {(s.task, s.step): s.loss for s in log.steps if s.task != "b" or s.step < 25},
            {(drop.task, drop.step) for drop in log.drops},
            {(stop.task, stop.step, stop.rule) for stop in log.stops},
        )
        for log in (one, two)
    ]
    assert told[0] == told[1]
    names = {path.name for path in (folder / "alone").iterdir()}
    assert names == {path.name for path in (folder / "two").iterdir()}
    for name in ("a.pt", "c.pt"):
        saved = [torch.load(folder / where / name) for where in ("alone", "two")]
        assert same(*saved)
