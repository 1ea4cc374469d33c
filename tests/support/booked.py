"""A workload with a plan book, and events that end its runs or change its devices."""

import os
import signal
import time
from functools import partial
from pathlib import Path

from support.chains import chain, rows
from support.cli import planner_cli, profile, succeeded
from support.plain import train
from support.same import assert_saved, step_in
from torch import Tensor

from executor.workload.task import Task
from plans import runlog

STEPS = 24
NOW = "now.txt"
LONG_US = 2_000_000  # for each op by the profile, so that what another plan saves is worth a start


def batch(step: int, number: int) -> tuple[Tensor, Tensor]:
    """As EVENTS says: in `6:2 9:SIGTERM 14:SIGKILL:1` there are two devices from step 6 on, process
    0 gets a signal when it loads step 9, and process 1 one when it loads step 14."""
    for event in os.environ.get("EVENTS", "").split():
        at, what, rank = (*event.split(":"), "0")[:3]
        if number and what != "SIGKILL":  # once, but whoever is killed may load either task
            continue
        if step != int(at) or rank != os.environ.get("RANK", "0"):
            continue
        if what.isdigit():
            Path(NOW).write_text("device\n" * int(what))
        else:
            os.kill(os.getpid(), signal.Signals[what])
        time.sleep(0.3)  # that is noticed before the next step
    return rows(4, step + 100 * number)


def tasks() -> list[Task]:
    return [
        chain(name, 3, 4, STEPS, seed=n, data=partial(batch, number=n))
        for n, name in enumerate("ab")
    ]


def make_book(name: str, sizes: str = "1..3", us: int = LONG_US) -> None:
    """The book of this name in this folder, with its profile."""
    profile(f"{__file__}:tasks", "profile.json", us=us)
    ways = ("--devices", sizes, "--segment-steps", 4, "--microbatch", 2)
    made = planner_cli("book", "profile.json", "-o", name, *ways, "--time-limit", 5, "--jobs", 1)
    assert "which train the same: a, b" in succeeded(made).out


def expect_plain(folder: str) -> None:
    """Both tasks have the bits of a loop that never stopped, and their losses."""
    logs = [runlog.load(log) for log in runlog.files(folder)]
    for task in tasks():
        plain = train(task, 2)
        losses = {s.step: s.loss for log in logs for s in log.steps if s.task == task.name}
        assert [losses[step] for step in range(STEPS)] == plain.losses
        assert step_in(Path(folder), task.name) == STEPS
        assert_saved(f"{folder}/{task.name}.pt", plain)
