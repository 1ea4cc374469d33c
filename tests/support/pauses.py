"""Random pauses before ops, to try other interleavings, and tasks at which Ctrl-C is pressed."""

import random
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from executor.devices import Mark, Now
from executor.replay import Halt
from executor.replay.gates import Gate
from executor.replay.jobs import Job, Maker
from executor.workload.task import Task


class Pause(Gate):
    """Who waits here waits for a random time."""

    def __init__(self, draw: random.Random, most_us: int) -> None:
        super().__init__()
        self._draw, self._most_us = draw, most_us

    def reached(self, number: int, halt: Halt) -> Mark:
        time.sleep(self._draw.randint(0, self._most_us) / 1e6)
        return Now()


def pausing(monkeypatch: pytest.MonkeyPatch, seed: int, most_us: int) -> None:
    """Let every op wait before it does anything, as long again for the same seed."""
    made = Maker._job

    def paused(self: Maker, *told: Any) -> Job:
        job = made(self, *told)
        pause = Pause(random.Random(f"{seed} {job.id}"), most_us)
        return job._replace(waits=(*job.waits, ("a pause", pause, 0)))

    monkeypatch.setattr(Maker, "_job", paused)


def press(on: str, at: int, task: Task) -> Task:
    """The task, with an interrupt where it asks for the batch of a step."""

    def data(step: int) -> tuple[Tensor, Tensor]:
        if (task.name, step) == (on, at):
            signal.raise_signal(signal.SIGINT)
        return task.data(step)

    return replace(task, data=data)
