"""What `survive` says of machines that come and go, against a run on as many devices.

    python -m tests.benchmarks.survived [--events 20] [--seed 0]

A tiny GPT is trained by a plan book for one to four emulated devices, as many as a file has lines;
these change at random, some seconds apart. Printed are the steps that were done at each of these
moments, and those that `survive` foretells by the book, with starts as long as those of the run
were on average. Exit code 1 where the run ends with more than 10 % more or fewer.
"""

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import plans
from planner.surviving import outcome, paces_of, stretches
from plans import runlog
from profiles.codec import write_atomic
from profiles.console import columns, whole
from profiles.units import show_us
from tests.benchmarks.kills import python

STEPS = 100_000  # far more than are made
TASKS = f"""
from functools import partial

from torch.optim import AdamW

from executor.workload import Task
from executor.workloads.bytes_lm import gpt, next_byte_loss, windows


def tasks() -> list[Task]:
    model = partial(gpt, 16, 1, 2, 8, 0.1)
    data = partial(windows, seed=1, batch=4, length=8)
    return [Task("gpt", model, data, next_byte_loss, partial(AdamW, lr=1e-3), {STEPS})]
"""
DEVICES = (1, 4)
APART_S = (3.0, 8.0)  # between two events
NEAR = 0.1
LATE_S = 120.0


Stay = tuple[float, int]
"""So many seconds there are so many devices."""


def stays(events: int, seed: int) -> list[Stay]:
    """One more than there are events, of which each changes the number of devices."""
    drawn, found = random.Random(seed), [(5.0, DEVICES[1])]
    for _ in range(events):
        others = [count for count in range(*DEVICES) if count != found[-1][1]]
        found.append((drawn.uniform(*APART_S), drawn.choice([*others, DEVICES[1]])))
    return found


def prepare(folder: Path) -> None:
    """The book."""
    (folder / "gpt.py").write_text(TASKS)
    devices = (
        "--device-memory",
        "4MiB",
        "--devices",
        DEVICES[1],
        "--slow-compute",
        10,
        "--samples",
        3,
    )
    sizes = ("--devices", f"{DEVICES[0]}..{DEVICES[1]}", "--microbatch", 1, "--segment-steps", 100)
    for words in (
        ("executor", "profile", "gpt.py:tasks", *devices, "-o", "profile.json"),
        ("planner", "book", "profile.json", *sizes, "-o", "x.book"),
    ):
        if python(folder, "-m", *words).wait():
            sys.exit((folder / "said").read_text())


def steps_in(folder: Path) -> int:
    """The steps that are in the log of a run."""
    with suppress(OSError):
        return (folder / "x" / runlog.LOG).read_bytes().count(b'"type":"step"')
    return 0


def followed(folder: Path, asked: Sequence[Stay]) -> list[tuple[int, int]]:
    """The µs since the first step and the steps that were done, where each stay ends."""
    now, found = folder / "now.txt", list[tuple[int, int]]()
    run = ("executor", "run", "x.book", "--devices-file", "now.txt", "-o", "x")
    write_atomic(now, b"device\n" * asked[0][1])
    process, begun_s, most = python(folder, "-m", *run), time.monotonic(), 0
    while not steps_in(folder):
        if process.poll() is not None or time.monotonic() > begun_s + LATE_S:
            process.kill()
            sys.exit((folder / "said").read_text())
        time.sleep(0.02)
    begun_s = until_s = time.monotonic()
    for (stay_s, _), (_, count) in pairwise([*asked, (0.0, 0)]):
        until_s += stay_s
        time.sleep(max(0.0, until_s - time.monotonic()))
        most = max(most, steps_in(folder))  # less while another log begins
        found.append((round((time.monotonic() - begun_s) * 1e6), most))
        write_atomic(now, b"device\n" * count)
    process.send_signal(signal.SIGTERM)
    if process.wait(LATE_S) != 128 + signal.SIGTERM:
        sys.exit((folder / "said").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=whole(1, 1000), default=20, metavar="N")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=0)
    given = parser.parse_args()
    asked = stays(given.events, given.seed)
    with TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder)
        done = followed(folder, asked)
        book = plans.book_from((folder / "x.book").read_bytes(), "x.book")
        starts = runlog.starts_us(folder / "x")
    start_us, paces = round(fmean(starts or [0])), paces_of(book)
    begins = [0, *(us for us, _ in done)]
    counts = [(us, count) for us, (_, count) in zip(begins, asked, strict=False)]
    parts = stretches(paces, counts, begins[-1], start_us, whole=1.0, notice=True)
    rows, more = [("after", "devices", "steps done", "foretold", "more")], 0.0
    for number, (us, steps) in enumerate(done, 1):
        foretold = STEPS * outcome(parts[:number]).trained
        more = steps / foretold - 1
        told = (str(parts[number - 1].devices), str(steps), f"{foretold:.0f}", f"{more:+.1%}")
        rows.append((show_us(us), *told))
    print("\n".join(columns(rows, numbers=True)))
    all_ = outcome(parts)
    print(
        f"{len(starts)} starts of {show_us(start_us)} on average; of the {STEPS * all_.free:.0f} "
        f"steps with free changes {done[-1][1] / (STEPS * all_.free):.1%} were done, "
        f"{all_.share:.1%} foretold"
    )
    sys.exit(abs(more) > NEAR)


if __name__ == "__main__":
    main()
