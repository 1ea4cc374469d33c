"""Random histories of a run of a plan book: devices that are lost or come, notices, kills.

    python -m tests.benchmarks.histories [--histories 20] [--seed 0]

Each history trains two tasks by a book for 1 to 4 devices, in starts drawn at random, one after the
other, until all is trained: in one process that follows a file of devices, or in 2 to 4 processes
under torchrun. A start has events: other devices, SIGUSR1 or SIGTERM to process 0, SIGKILL of any
process. A history is well if each start ends within a minute, and the losses and states in the end
are those of a plain loop, bit for bit. Exit code 1 unless all are.
"""

import argparse
import os
import random
import shutil
import sys
import time
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.booked import NOW, STEPS, expect_plain, make_book
from support.forked import ended, started, torchrun
from support.same import step_in
from support.searches import ALONE, searching

LIMIT_S = 60.0
STARTS = 12  # with events, of a history


def history(rng: random.Random, folder: Path) -> str:
    """Train in this folder, which has the book; the starts in words."""
    told = []
    for left in range(STARTS, -1, -1):
        done = min((step_in(folder / "x", name) for name in "ab"), default=0) if kept(folder) else 0
        if done == STEPS:
            break
        processes = rng.randrange(1, 5)
        events = drawn(rng, processes, done) if left else ""
        (folder / NOW).write_text("device\n" * rng.randrange(1, 5))
        run: list[object] = ["-m", "executor", "run", "x.book", "-o", "x"]
        command = [*run, "--devices-file", NOW] if processes == 1 else torchrun(processes, *run)
        begun = time.monotonic()
        start = started(command, Path("said"), folder, EVENTS=events)
        try:
            code = ended(start, LIMIT_S)
            assert events or not code, f"ended with {code}"
        except AssertionError as error:
            said = (folder / "said").read_text()[-2000:]
            raise AssertionError(f"{told}, {processes}({events}): {error}: {said}") from None
        told.append(f"{processes}({events}) {code}, {time.monotonic() - begun:.0f} s")
    with chdir(folder):
        expect_plain("x")
    return "; ".join(told)


def kept(folder: Path) -> bool:
    """True once both tasks have a state there."""
    return all((folder / "x" / f"{name}.pt").exists() for name in "ab")


def drawn(rng: random.Random, processes: int, done: int) -> str:
    """The events of a start that begins after so many steps."""
    steps = sorted(rng.randrange(done, done + 8) for _ in range(3))
    end = rng.choice(["", "SIGUSR1", "SIGTERM", "SIGKILL", "SIGKILL"])
    changes = [f"{step}:{rng.randrange(1, 5)}" for step in steps[:2] if processes == 1]
    rank = rng.randrange(processes) if end == "SIGKILL" else 0
    return " ".join([*changes, *([f"{steps[2]}:{end}:{rank}"] if end else [])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = 0
    with TemporaryDirectory() as name, searching(ALONE):
        base = Path(name, "base")
        base.mkdir()
        with chdir(base):
            make_book("x.book", "1..4")
        for number in range(asked.seed, asked.seed + asked.histories):
            folder = Path(name, str(number))
            shutil.copytree(base, folder)
            try:
                print(f"{number}: well: {history(random.Random(number), folder)}", flush=True)
            except AssertionError as error:
                wrong += 1
                print(f"{number}: WRONG: {error}", flush=True)
    print(f"{asked.histories - wrong} of {asked.histories} histories are well")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
