"""What a plan book takes to build, against one plan for the most devices, and what its plans lose.

    python -m tests.benchmarks.books [PROFILE] [--devices 4,5,6,7,8] [--jobs 2] [--alone]

PROFILE is by default one of GPT-2 XL on A100s. Printed are seconds of wall time, and of all
processes' CPU time; --alone: and each plan beside one that is built alone with the same
microbatches. Exit code 1 where the book takes more than 2.5 times as long as the plan, or a plan is
more than 0.5 % longer than alone. Only on idle cores the wall time says something.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import plans
from profiles.console import columns, listed, whole

TIMES, LONGER = 2.5, 1.005
GPT = ("gpt2-xl", "--gpu", "a100-40", "--batch", 16)


def taken(*words: object) -> tuple[float, float]:
    """Wall and CPU seconds of `python -m planner` with these words."""
    wall, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = () if words[0] == "estimate" else ("--time-limit", 600)  # none, if cores are busy
    command = [sys.executable, "-m", "planner", *map(str, (*words, *limit))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", nargs="?", type=Path)
    parser.add_argument("--devices", type=listed(whole(1, 1 << 16)), default=(4, 5, 6, 7, 8))
    parser.add_argument("--jobs", type=whole(1, 1 << 10), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    rows, ok = [("what", "wall, s", "CPU, s")], True
    with TemporaryDirectory() as made:
        book, plan, profile = Path(made) / "x.book", Path(made) / "x.json", given.profile
        if profile is None:
            profile = Path(made) / "profile.json"
            taken("estimate", *GPT, "-o", profile)
        one = taken("build", profile, "--devices", max(given.devices), "-o", plan)
        sizes = ",".join(map(str, given.devices))
        all_ = taken("book", profile, "--devices", sizes, "--jobs", given.jobs, "-o", book)
        ratios = tuple(each / single for each, single in zip(all_, one, strict=True))
        for what, figures in (("one plan", one), ("book", all_), ("times", ratios)):
            rows.append((what, *(f"{figure:.2f}" for figure in figures)))
        ok = ratios[0] <= TIMES
        for own in plans.book_from(book.read_bytes(), "x.book").plans if given.alone else ():
            same = [x for t in own.tasks for x in ("--microbatch", f"{t.name}={t.microbatch}")]
            every = max(t.steps for t in own.tasks) // 20 or 1
            asked = ("--devices", len(own.devices), "--segment-steps", every, *same)
            taken("build", profile, *asked, "-o", plan)
            pair = (own.prediction.makespan_us, plans.load(plan).prediction.makespan_us)
            rows.append((plans.size_of(own), *(f"{us / 1e6:.2f}" for us in pair)))
            ok = ok and pair[0] <= LONGER * pair[1]
    print("\n".join(columns(rows, numbers=True)))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
