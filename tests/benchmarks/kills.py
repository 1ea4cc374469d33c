"""Processes of a run killed and stopped at all moments, under torchrun with restarts.

    python -m tests.benchmarks.kills [--kills 60] [--seed 0]

Two tasks on four emulated devices, one over before the other, are trained in 2 and 4 processes
again and again. Each time one process, drawn at random, gets SIGKILL or SIGSTOP at a random moment:
while processes start, between steps, while a checkpoint is written, or after the last step. A run
ends well if torchrun ends with 0, not more than a minute later than an undisturbed one, nothing is
left of it, and the losses and saved models are those of one process, bit for bit. Exit code 1
unless all do.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import failing_tasks
from support.forked import children, status
from support.same import same

from plans import runlog
from profiles import console
from profiles.errors import FormatError

LATE_S = 60.0  # that a run may end later than an undisturbed one
SLOW = {"SLOW": "0.03"}  # seconds that a batch takes to load
ROOT = Path(__file__).parents[2]
TASKS = "failing_tasks.py"
MOMENTS = ("start", "steps", "checkpoint", "end")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
PROCESSES = (2, 4)
_TRIES = 4  # to strike a process before it is gone


class Plain(NamedTuple):
    """An undisturbed run: when its processes began, its first and last step were logged, they
    were gone and it ended, in seconds since it was started."""

    begun_s: float
    first_s: float
    last_s: float
    gone_s: float
    end_s: float


class Case(NamedTuple):
    """A process to strike, and when; at: a random number below 1, which says where in it."""

    processes: int
    moment: str
    number: signal.Signals
    rank: int
    at: float


class Row(NamedTuple):
    """What came of it; wrong: empty where the run ended well."""

    case: Case
    struck: bool
    restarts: int
    seconds: float
    wrong: str


def python(folder: Path, *words: object, **more: str) -> "subprocess.Popen[bytes]":
    """`python WORDS` in a folder, with both outputs in the file `said`."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    with open(folder / "said", "ab") as said:
        command = [sys.executable, *map(str, words)]
        return subprocess.Popen(command, cwd=folder, env=own, stdout=said, stderr=said)


def prepared(folder: Path) -> None:
    """The plan, and what one process makes of it."""
    (folder / TASKS).write_text(Path(failing_tasks.__file__).read_text())
    devices = ("--device-memory", "1MiB", "--devices", 4, "--slow-compute", 1, "--samples", 1)
    build = ("--devices", 4, "--layout", "4x1", "--segment-steps", 5, "-o", "plan.json")
    for words in (
        ("executor", "profile", f"{TASKS}:two", *devices, "-o", "profile.json"),
        ("planner", "build", "profile.json", *build),
        ("executor", "run", "plan.json", "-o", "x"),
    ):
        if python(folder, "-m", *words).wait():
            sys.exit((folder / "said").read_text())


class Run:
    """A run under torchrun in a folder of its own, which has the plan."""

    def __init__(self, folder: Path, known: Path, processes: int) -> None:
        folder.mkdir()
        for name in (TASKS, "plan.json"):
            (folder / name).symlink_to(known / name)
        self._folder = folder
        start = ("torch.distributed.run", "--nproc-per-node", processes, "--max-restarts", 3)
        call = ("executor", "run", "plan.json", "-o", "x")
        more = ("--stall-seconds", 5)
        self.begun = time.monotonic()
        self._agent = python(folder, "-m", *start, "-m", *call, *more, **SLOW)

    @property
    def now(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.begun

    @property
    def over(self) -> bool:
        return self._agent.poll() is not None

    @property
    def processes(self) -> list[int]:
        return children(self._agent.pid)

    @property
    def writing(self) -> bool:
        """True while a checkpoint is written."""
        return any((self._folder / "x").glob("*.pt.part"))

    def steps(self) -> int:
        """Those in its log, of which lines are counted."""
        with suppress(OSError):
            return (self._folder / "x" / runlog.LOG).read_bytes().count(b'{"type":"step"')
        return 0

    def wait(self, until: Callable[[], object]) -> float:
        """The time at which this is so, or the run is over."""
        while not self.over and not until():
            time.sleep(0.0005)
        return self.now

    def process(self, rank: int) -> int:
        """The process of this rank, as soon as it is there; 0 if the run is over before."""
        while not self.over:
            for pid in self.processes:
                with suppress(OSError):
                    own = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    if b"RANK=%d" % rank in own:
                        return pid
            time.sleep(0.01)
        return 0

    def ended(self, seconds: float) -> str:
        """Wait until it has ended, no longer than so: what is wrong with its end."""
        known = set(self.processes)
        while not self.over and self.now < seconds:
            known |= set(self.processes)
            time.sleep(0.05)
        left = [pid for pid in known if (status(pid) or ["Z"])[0] != "Z"]
        late = not self.over
        for pid in (*left, *([self._agent.pid] if late else [])):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        code = self._agent.wait()
        if late:
            return f"hangs: not over after {seconds:.0f} s"
        return f"exit code {code}" if code else "leaves processes" if left else ""

    def restarts(self) -> int:
        with suppress(FormatError):
            return len(runlog.load(self._folder / "x").restarts)
        return 0


def differs(folder: Path, known: Path) -> str:
    """What the run has trained otherwise than the one that is known."""
    logs = [runlog.load(one / "x") for one in (known, folder)]
    found = [
        sorted((s.task, s.step, s.loss) for s in (*log.steps, *log.evaluations)) for log in logs
    ]
    if found[0] != found[1]:
        return "other losses"
    for file in sorted((known / "x").glob("*.pt")):
        if not same(torch.load(file), torch.load(folder / "x" / file.name)):
            return f"another {file.name}"
    return ""


def undisturbed(folder: Path, known: Path, processes: int) -> Plain:
    run = Run(folder, known, processes)
    steps = runlog.load(known / "x").steps
    begun = run.wait(lambda: run.processes)
    first = run.wait(run.steps)
    last = run.wait(lambda: run.steps() == len(steps))
    gone = run.wait(lambda: not run.processes)
    wrong = run.ended(run.now + LATE_S) or differs(folder, known)
    if wrong:
        sys.exit(f"undisturbed: {wrong}\n{(folder / 'said').read_text()}")
    return Plain(begun, first, last, gone, run.now)


def struck(run: Run, case: Case, plain: Plain, steps: int) -> bool:
    """Strike at the case's moment; False where the process was gone by then."""
    victim = run.process(case.rank)
    if case.moment == "start":
        later = run.now + case.at * (plain.first_s - plain.begun_s)
    elif case.moment == "end":
        run.wait(lambda: run.steps() == steps)
        later = run.now + case.at**2 * (plain.gone_s - plain.last_s)
    else:
        number = int(case.at * steps)
        run.wait(lambda: run.steps() > number)
        if case.moment == "checkpoint":
            run.wait(lambda: run.writing)
        longest = 0.003 if case.moment == "checkpoint" else 0.1
        later = run.now + random.Random(case.at).random() * longest
    run.wait(lambda: run.now > later)
    if not victim or (status(victim) or ["Z"])[0] == "Z":
        return False
    os.kill(victim, case.number)
    return True


def tried(folder: Path, known: Path, case: Case, plain: Plain, steps: int) -> Row:
    run = Run(folder, known, case.processes)
    hit = struck(run, case, plain, steps)
    at = run.now
    wrong = run.ended(max(at, plain.end_s) + plain.end_s + LATE_S)
    seconds = run.now - plain.end_s
    wrong = wrong or differs(folder, known)
    return Row(case, hit, run.restarts(), seconds, wrong)


def tried_until_struck(folder: Path, known: Path, case: Case, plain: Plain, steps: int) -> Row:
    """A case whose process was gone by then is tried again, sooner."""
    for number in range(_TRIES):
        row = tried(folder / str(number), known, case, plain, steps)
        if row.struck or row.wrong:
            break
        case = case._replace(at=case.at / 2)
    return row


def cases(count: int, seed: int) -> Iterator[Case]:
    """All moments, signals and numbers of processes in turn; the rest is drawn."""
    draw = random.Random(seed)
    every = [(p, m, s) for p in PROCESSES for m in MOMENTS for s in SIGNALS]
    for number in range(count):
        if number % len(every) == 0:
            draw.shuffle(every)
        processes, moment, kind = every[number % len(every)]
        yield Case(processes, moment, kind, draw.randrange(processes), draw.random())


def table(rows: Sequence[Row]) -> str:
    head = ("moment", "signal", "runs", "struck", "wrong", "hangs", "restarts", "later s, median")
    lines = [head]
    for moment in MOMENTS:
        for number in SIGNALS:
            own = [r for r in rows if (r.case.moment, r.case.number) == (moment, number)]
            if own:
                hangs = sum(row.wrong.startswith("hangs") for row in own)
                counts = (
                    len(own),
                    sum(row.struck for row in own),
                    sum(bool(row.wrong) for row in own) - hangs,
                    hangs,
                    sum(row.restarts for row in own),
                )
                late = f"{median(row.seconds for row in own):.1f}"
                lines.append((moment, number.name, *map(str, counts), late))
    return "\n".join(console.columns(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as made:
        folder = Path(made)
        known = folder / "known"
        known.mkdir()
        prepared(known)
        steps = len(runlog.load(known / "x").steps)
        plain = {n: undisturbed(folder / f"plain{n}", known, n) for n in PROCESSES}
        print(plain, file=sys.stderr)
        for number, case in enumerate(cases(options.kills, options.seed)):
            own = folder / str(number)
            own.mkdir()
            row = tried_until_struck(own, known, case, plain[case.processes], steps)
            rows.append(row)
            at, case = f"{row.case.moment} ({row.case.at:.3f})", row.case
            where = f"process {case.rank} of {case.processes}, {at}"
            told = row.wrong or ("ends well" if row.struck else "ends well, and was over before")
            late = f"{row.restarts} restart(s), {row.seconds:+.1f} s"
            print(f"{number} {case.number.name} {where}: {told}, {late}", file=sys.stderr)
            if row.wrong:
                print(*(file.read_text() for file in own.glob("*/said")), file=sys.stderr)
    print(table(rows))
    sys.exit(any(row.wrong for row in rows))


if __name__ == "__main__":
    main()
