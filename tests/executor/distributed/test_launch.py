"""Plans that two processes replay, against one process; what ends such a run."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from support import small_tasks
from support.agents import IN_TURN
from support.cli import executor_cli, planner_cli, succeeded
from support.forked import children, ended, started, torchrun
from support.same import same
from support.steady import steady

import plans
import profiles
from executor.distributed.world import World
from executor.errors import UsageError
from executor.profiling.profiler import Options, profile
from plans import runlog
from profiles.schema import Emulation

pytestmark = pytest.mark.usefixtures("quick", "untimed")

LINK = Emulation(10**9, 10**9, 5)

# By name: the workload, the bytes of a device, and what build is asked for; test_alike has more,
# without command lines.
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "1f1b": ("dropout", 1 << 20, ("--layout", "2x1", "--order", "1f1b")),
    "replicas": ("scaled", 1 << 20, ("--layout", "1x2")),
    "spilling": ("pairs", 110 << 10, ("--layout", "2x1", "--order", "gpipe")),
    "tasks": ("three", 110 << 10, ()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plans of all cases, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("processes")
    for name, (workload, room, asked) in CASES.items():
        options = Options(device_bytes=room, emulation=LINK, devices=2, samples=1)
        measured = steady(profile(f"{small_tasks.__file__}:{workload}", options))
        profiles.save(folder / f"{name}.profile.json", measured)
        plan, out = folder / f"{name}.json", folder / name
        call = ("build", folder / f"{name}.profile.json", "--devices", "2", *asked, "-o", plan)
        succeeded(planner_cli(*call))
        succeeded(executor_cli("run", plan, "-o", out / "one"))
    return folder


@pytest.fixture(scope="module")
def together(folder: Path) -> list[int]:
    """The exit codes of all cases in two processes."""
    calls = [json.dumps(["run", f"{name}.json", "-o", f"{name}/two"]) for name in CASES]
    said = folder / "said"
    code = ended(started(torchrun(2, IN_TURN, *calls), said, folder))
    output = said.read_text()
    assert code == 0, output
    codes: list[int] = json.loads(next(x for x in output.splitlines() if x.startswith("[0")))
    return codes


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_bits_of_one(folder: Path, together: list[int], name: str) -> None:
    """Losses, and all that a saved file holds; every op is in the log once."""
    assert together == [0] * len(CASES)
    one, two = (runlog.load(folder / name / many) for many in ("one", "two"))
    losses = [{(s.task, s.step): s.loss for s in log.steps} for log in (one, two)]
    assert losses[0] == losses[1]
    found = [{(e.task, e.step): e.loss for e in log.evaluations} for log in (one, two)]
    assert found[0] == found[1]
    ops = [sorted((op.segment, op.op, op.round) for op in log.ops) for log in (one, two)]
    assert ops[0] == ops[1]
    assert one.end
    assert two.end
    assert two.end.peak_bytes == one.end.peak_bytes
    files = sorted((folder / name / "one").glob("*.pt"))
    assert files
    for file in files:
        saved = [torch.load(folder / name / many / file.name) for many in ("one", "two")]
        assert same(*saved)


def test_processes_that_cannot_share_the_devices_are_refused(folder: Path) -> None:
    """With both numbers; which one of them says so is in test_nodes."""
    told = (
        "3 processes cannot share the plan's 2 devices equally; start torchrun with a "
        "--nproc-per-node that divides 2, or build for --devices 3"
    )
    with pytest.raises(UsageError, match=re.escape(told)):
        World(0, 3).ranks(plans.load(folder / "1f1b.json"))


def test_an_interrupt_ends_the_run_where_states_are_whole(
    folder: Path, together: list[int]
) -> None:
    """A true torchrun hands it on to all; the log says so, and one process goes on from what is
    kept."""
    _long(folder)
    call = torchrun(2, "-m", "executor", "run", "long.json", "-o", "i")
    agent = subprocess.Popen(
        [sys.executable, *map(str, call)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    workers = _workers(agent.pid, folder / "i" / runlog.LOG)
    agent.send_signal(signal.SIGINT)
    output, _ = agent.communicate(timeout=60)
    assert "interrupted by SIG" in output
    log = runlog.load(folder / "i")
    assert log.end
    assert log.end.status == "interrupted"
    (kept,) = log.checkpoints
    assert kept.step == max(step.step for step in log.steps) + 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    call = ("build", "l.json", "--from", "i", "--devices", "1", "-o", "rest.json")
    with contextlib.chdir(folder):
        succeeded(planner_cli(*call))


def _long(folder: Path) -> None:
    """A plan of many steps."""
    if not (folder / "long.json").exists():
        measured = profiles.load(folder / "1f1b.profile.json")
        import msgspec

        task = msgspec.structs.replace(measured.tasks[0], steps=100_000)
        profiles.save(folder / "l.json", msgspec.structs.replace(measured, tasks=(task,)))
        call = ("build", folder / "l.json", "--devices", "2", "--layout", "2x1")
        succeeded(planner_cli(*call, "-o", folder / "long.json"))


def _workers(agent: int, log: Path) -> list[int]:
    """The processes that an agent has started, once they write their log."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size > 5_000):
        time.sleep(0.05)
    return children(agent)
