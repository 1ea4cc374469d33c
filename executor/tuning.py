"""Trains a sweep: rung by rung a plan, a run of it, and the weaker tasks left out of the next plan.

    runs/x/profile.json    the costs of all tasks, also of those that came later
           rung-0.json     the plan of all tasks up to the first rung
           rung-1.json     of those that were kept, up to the second one; and so on
           added           references of more tasks, a line each, for the next rung that is planned
           log.jsonl, ...  as of every run

All that is known lies in these files, so the same command goes on from wherever it was ended. The
executor decides nothing: which tasks go on follows from the metrics as the sweep says, and the
planner, a process of its own, says where and when they train.
"""

import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

import plans
import profiles
from executor.errors import ProcessError, RunError, UsageError
from executor.records import working
from executor.standings import Rung, predicted_us
from executor.workload import Sweep
from plans import runlog
from plans.runlog import RunLog
from profiles import console
from profiles.codec import file_sha256
from profiles.schema import Profile
from profiles.units import show_us

_ADDED = "added"


@dataclass(frozen=True)
class Tuning:
    """A sweep in its folder. load: the sweep, as its file says it now; measure: profiles tasks but
    for those that are named; train: runs the plan in a file, in the folder; options: of `python -m
    planner build`."""

    load: Callable[[], Sweep]
    folder: Path
    measure: Callable[[Collection[str]], Profile | None]
    train: Callable[[Path], None]
    options: Sequence[str]

    def run(self) -> tuple[Sweep, list[Rung]]:
        """Train the sweep to its end, or what an earlier start of it has left; its rungs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep, rungs = self.load(), list[Rung]()
        for at, step in enumerate(sweep.rungs):
            path = self.folder / f"rung-{at}.json"
            if not path.exists():
                sweep = self._plan(path, step, rungs)
            rung = self._rung(path, step)
            if rung.log is None:
                whole_us = predicted_us(sweep, [*rungs, rung])
                console.note(
                    f"rung {at + 1} of {len(sweep.rungs)}: {len(rung.plan.tasks)} task(s) up to "
                    f"step {step}: {show_us(rung.plan.prediction.makespan_us)} planned, the whole "
                    f"sweep about {show_us(whole_us)}"
                )
                self.train(path)
                rung = self._rung(path, step)
            rungs.append(rung)
        return sweep, rungs

    def _plan(self, path: Path, step: int, rungs: Sequence[Rung]) -> Sweep:
        """Plan the next rung, of the tasks that were kept and of those that are new in the
        workload; the sweep as it is there now."""
        sweep = self.load()
        known = {task.name for rung in rungs for task in rung.plan.tasks}
        going = sweep.kept(len(rungs) - 1, rungs[-1].values(sweep.metric)) if rungs else []
        names = [*going, *(name for name in sweep.settings if name not in known)]
        if not names:
            raise RunError(
                f"{self.folder}: all tasks of the sweep have failed before step {step}; the table "
                "of the last run above says why"
            )
        self._profile()
        self._build(path, step, names, going_on=bool(rungs))
        return sweep

    def _profile(self) -> None:
        """Measure the tasks that were not measured."""
        path = self.folder / "profile.json"
        known = profiles.load(path) if path.exists() else None
        found = self.measure([task.name for task in known.tasks] if known else [])
        if found:
            profiles.save(path, replace(known, tasks=known.tasks + found.tasks) if known else found)

    def _build(self, path: Path, step: int, names: Sequence[str], *, going_on: bool) -> None:
        """Have the planner write a plan; ProcessError with its own words and exit code."""
        command = [sys.executable, "-m", "planner", "build", str(self.folder / "profile.json")]
        command += [*self.options, "--until", str(step)]
        command += [word for name in names for word in ("--only", name)]
        command += ["--from", str(self.folder)] if going_on else []
        # One that outlives this process, which is killed, writes where nobody looks.
        with TemporaryDirectory(prefix=".plan-", dir=self.folder) as own:
            made = Path(own, path.name)
            with working(f"planning {len(names)} task(s) up to step {step}"):
                done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
            if done.returncode:
                why = done.stderr.strip().rpartition("error: ")[2] or "it was killed"
                raise ProcessError(f"planning up to step {step}: {why}", done.returncode)
            for file in sorted(made.parent.iterdir(), key=made.__eq__):  # tables first
                file.replace(self.folder / file.name)

    def _rung(self, path: Path, step: int) -> Rung:
        """The rung of a plan, with the log of its run once that has ended."""
        plan = plans.load(path)
        if odd := [task.name for task in plan.tasks if task.done + task.steps != step]:
            raise UsageError(
                f"{path}: plans {odd[0]} up to another step than {step}, the sweep's rung; "
                "give each sweep a folder of its own, -o runs/y"
            )
        return Rung(step, plan, _ended(self.folder, path))


def added(folder: Path) -> list[str]:
    """The references of tasks that were added to the sweep, in their order."""
    path = folder / _ADDED
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line.removesuffix("\n") for line in lines if line.endswith("\n")]  # none half written


def add(folder: Path, ref: str, sweep: Sweep) -> None:
    """Add the tasks of a reference, which were looked at, to the sweep in the folder; UsageError
    where there is none, or none that has a rung to plan yet."""
    if not (folder / "rung-0.json").exists():
        raise UsageError(f"{folder}: holds no sweep that has begun; give the folder of one, -o DIR")
    last = folder / f"rung-{len(sweep.rungs) - 1}.json"
    if last.exists():
        raise UsageError(f"{last}: the last rung is planned already; tune {ref} as another sweep")
    with open(folder / _ADDED, "a") as file:
        file.write(f"{ref}\n")


def _ended(folder: Path, path: Path) -> RunLog | None:
    """The log of the run of this plan, if it has come to its end."""
    own = file_sha256(path)
    for log in runlog.files(folder):
        if log.exists() and runlog.read(log)[0].plan_sha256 == own:
            found = runlog.load(log)
            return found if found.end and found.end.status in ("ok", "partial") else None
    return None
