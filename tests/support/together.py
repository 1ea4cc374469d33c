"""The same runs in one process and in several, and what is left of each to compare.

torchrun starts this file in tests. Its processes take one job after the other from their folder, as
they come, and process 0 writes what is left of each.

    folder/3.job    job number 3, pickled
    folder/3.bits   what is left of it
"""

import gc
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from support.forked import ended, started, torchrun
from support.pauses import pausing
from support.retime import foretold
from torch import Tensor

from executor import processes
from executor.driver import Options, Result
from executor.errors import text_of
from executor.workload.task import Task
from plans.order import waiting
from plans.schema import Plan
from profiles.codec import sha256

_LOOK_S, _LATE_S = 0.02, 250  # between two looks for a job; that one may be late

Bits = dict[str, Any]  # as JSON has it


@dataclass(frozen=True)
class Job:
    """Plans that train the same tasks one after the other, each from where the one before ended.
    pauses_us: that an op waits at most before it begins."""

    plans: tuple[Plan, ...]
    tasks: Sequence[Task]
    options: Options = field(default_factory=Options)
    pauses_us: int = 0


def divided(job: Job) -> Job:
    """The job on 2, 4 or 8 devices, of which it leaves some alone."""
    most = max(len(plan.devices) for plan in job.plans)
    count = next(size for size in (2, 4, 8) if size >= most)
    return replace(job, plans=tuple(_on(plan, count) for plan in job.plans))


def _on(plan: Plan, count: int) -> Plan:
    own = plan.devices
    return foretold(structs.replace(plan, devices=own + own[-1:] * (count - len(own))))


def done(job: Job, folder: Path) -> Bits:
    """What is left when a job is done, by one process or by several; nothing where another one
    knows that. The job keeps its files in the folder."""
    found: Bits = {}
    for number, plan in enumerate(job.plans):
        options = job.options
        if len(job.plans) > 1 or waiting(plan):
            options = replace(options, folder=folder)
        with pytest.MonkeyPatch.context() as patched:
            if job.pauses_us:
                pausing(patched, number, job.pauses_us)
            processes.main(Asked(plan, job.tasks, options), partial(_finish, found, number))
        if "error" in found:
            return found
    return json.loads(json.dumps(found))


@dataclass(frozen=True)
class Asked:
    """A plan of a job, as the command line would ask for it."""

    plan: Plan
    loaded: Sequence[Task]
    used: Options

    @property
    def stall_seconds(self) -> float | None:
        return self.used.stall_seconds

    def given(self, told: Callable[[Plan, Options], None]) -> processes.Given:
        told(self.plan, self.used)
        return self.plan, self.loaded, self.used

    def options(self) -> Options:
        return self.used

    def proven(self) -> Plan:
        return self.plan

    def tasks(self, wanted: object) -> Sequence[Task]:
        return self.loaded


def _finish(found: Bits, number: int, given: processes.Given, train: processes.Train) -> int:
    """Train, and add what is left, or else the error alone."""
    try:
        found |= _left(given[0], train(*given), number)
    except Exception as error:
        found.clear()
        found["error"] = text_of(error)
    return int("error" in found)


def _left(plan: Plan, result: Result, number: int) -> Bits:
    """Losses, and all that checkpoints would hold of the tasks that were not dropped."""
    found: Bits = {"losses": result.losses, "evaluations": result.val_losses}
    found["metrics"] = result.metrics
    found["dropped"] = sorted(result.dropped)
    found["stopped"] = {name: stop.step for name, stop in result.stopped.items()}
    for task in plan.tasks:
        if task.name not in result.dropped:
            host = result.store.at_hand(task.name)
            content = {
                "model": host.whole().state_dict(),
                "optimizer": host.optimizer_state(),
                "rng": host.rng_state,
                "loss scale": host.loss_scale,
                "settings": host.settings(),
            }
            found[f"state of {task.name}"] = _printed(content)
    return {f"{name} {number}": value for name, value in found.items()}


def _printed(value: object) -> Any:
    """Nested data as JSON has it, with hashes for tensors."""
    if isinstance(value, Mapping):
        return {str(key): _printed(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printed(one) for one in value]
    if not isinstance(value, Tensor):
        return repr(value)
    bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {list(value.shape)} {sha256(bits)}"


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two lots of bits differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{where}/{key}")
    elif one != other:
        yield f"{where}: {one}, and {other}"


class Together:
    """So many processes, which do jobs together."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir()
        self._folder, self._given = folder, 0
        self._said = folder / "said"
        self._agent = started(torchrun(size, __file__, folder), self._said)

    def give(self, job: Job | None) -> int:
        """Let them do this job next; its number. None: there are no more."""
        part = self._folder / "part"
        part.write_bytes(pickle.dumps(job))
        part.rename(self._folder / f"{self._given}.job")
        self._given += 1
        return self._given - 1

    def close(self) -> str:
        """Wait until all is done; what they said."""
        self.give(None)
        ended(self._agent, _LATE_S)
        return self._said.read_text()

    def left(self, number: int) -> Bits:
        """What is left of a job."""
        file = self._folder / f"{number}.bits"
        return json.loads(file.read_text()) if file.exists() else {"error": "not done"}


def _serve(folder: Path) -> None:
    """Do the jobs of a folder, as one of its processes."""
    rank = int(os.environ["RANK"])
    for number in count():
        job = _next(folder / f"{number}.job")
        if job is None:
            return
        bits = done(job, folder / f"{number}")
        if number % 32 == 31:
            gc.collect()  # connections end with their groups
        if rank == 0:
            (folder / f"{number}.bits").write_text(json.dumps(bits))


def _next(file: Path) -> Job | None:
    deadline = time.monotonic() + _LATE_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} does not come"
        time.sleep(_LOOK_S)
    return pickle.loads(file.read_bytes())


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
