"""A dataset with augmentation, read by a loader, trains in a run what it trains in a plain loop.

`tasks` and its like are workloads of their own.
"""

import os
import re
import shutil
import signal
import time
from contextlib import chdir
from pathlib import Path

import pytest
from support.cli import executor_cli, planner_cli, profile, succeeded
from support.forked import children, ended, started
from support.photos import Photos, task
from support.plain import train
from support.same import assert_saved

import plans
from executor.workload import Task, load
from plans import runlog

pytestmark = pytest.mark.usefixtures("alone", "untimed")

STEPS = 20


def tasks() -> list[Task]:
    """One that reads by itself and one with worker processes; of as many photos as the environment
    says."""
    count = int(os.environ.get("PHOTOS", "22"))
    return [
        task("slow", Photos(count, late=0.01), STEPS),
        task("ahead", Photos(count), STEPS, workers=1),
    ]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A folder with a plan, and in x a run that was killed in its middle; its worker processes."""
    folder = tmp_path_factory.mktemp("killed")
    with chdir(folder):
        profile(f"{__file__}:tasks", "profile.json")
        assert not workers_of(os.getpid()), "a profile needs none"
        sizes = ("--microbatch", 4, "--segment-steps", 5)
        succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *sizes))
        process = started(["-m", "executor", "run", "plan.json", "-o", "x"], Path("said"))
        log, kept = Path("x", runlog.LOG), set[str]()
        while process.is_alive() and kept != {"slow", "ahead"}:
            time.sleep(0.05)  # a look takes long where there are many processes
            lines = runlog.load(log).checkpoints if log.exists() else ()
            kept = {one.task for one in lines if one.step >= 5}
        workers = workers_of(process.pid or 0)
        process.kill()
        assert ended(process) == -signal.SIGKILL, Path("said").read_text()
    return folder, workers


@pytest.fixture(autouse=True)
def copied(killed: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory is a copy of that folder."""
    shutil.copytree(killed[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def workers_of(pid: int) -> list[int]:
    """The processes that the loaders of a run have started."""
    return [child for child in children(pid) if works(child)]


def works(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_killed_run_goes_on_with_its_samples() -> None:
    """The bits of a plain loop over the same loader, whoever reads."""
    succeeded(executor_cli("run", "plan.json", "-o", "x"))
    assert not workers_of(os.getpid())
    assert len(runlog.load("x").restarts) == 1
    for one in tasks():
        assert_saved(f"x/{one.name}.pt", train(one, 1))


def test_worker_processes_of_a_killed_run_end_soon(killed: tuple[Path, list[int]]) -> None:
    assert killed[1]
    deadline = time.monotonic() + 30
    while any(map(works, killed[1])):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_file_of_the_page_trains_as_it_stands() -> None:
    """But for the epochs and one of the processes."""
    page = (Path(plans.__file__).parents[1] / "docs" / "data.md").read_text()
    code = page.split("```python\n", 1)[1].split("```", 1)[0]
    for told, short in {
        "3 * len(data)": "4",
        "workers=2": "workers=1",
        "every=8": "every=2",
    }.items():
        assert told in code
        code = code.replace(told, short)
    Path("my.py").write_text(code)
    profile("my.py:tasks", "own.json")
    succeeded(planner_cli("build", "own.json", "-o", "own.plan", "--microbatch", 8))
    succeeded(executor_cli("run", "own.plan", "-o", "y"))
    (one,), _ = load("my.py:tasks")
    plain = train(one, 2)
    assert_saved("y/photos.pt", plain)
    assert {line.step: line.metrics for line in runlog.load("y").evaluations} == plain.metrics


def test_a_dataset_that_has_changed_its_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run goes on: in a line, before anything is trained."""
    monkeypatch.setenv("PHOTOS", "21")
    answer = executor_cli("run", "plan.json", "-o", "x")
    assert answer.code == 2
    told = re.findall(r"^ +task (\w+): its dataset has 21 samples, and had 22", answer.err, re.M)
    assert told == ["slow", "ahead"], answer.err
