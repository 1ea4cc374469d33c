"""Steps of many sequences laid out: how long that takes, and what a few kinds of rounds lose.

    python -m tests.benchmarks.long_data [FILE] [--steps N] [--batch N] [--pipelines N]
        [--reorder-window N] [--json]

FILE has the `lengths` of documents; without it they are drawn: lognormal, median 430, sigma 1.1, at
most 32,000 tokens. A row for each kind of pool: equal pipelines of two stages, and as many devices
in two types, half of which are twice as fast on a sequence and have no second stage. Seconds and
memory are of this many steps, then of 100,000: processes have half of the work each, and this one
does the rest alone. "lost" is the time of microbatches that steps do not need but their kind has,
"step" the mean of all with it. --reorder-window: steps within which samples are reordered.

Exits 1 where 100,000 steps would take more than 10 minutes or 4 GiB.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import Curve, PipelineType, Pool
from planner.packing import TOKENS, Arrangement, Samples, arranged, laid_out, write_table
from profiles.lengths import reorder

STEPS, SECONDS, BYTES = 100_000, 600, 4 << 30
JOBS = 2
TIMED = 2000  # steps at most that are laid out once more, after the clock was read


@dataclass(frozen=True)
class Row:
    """Of so many steps: kinds, their changes, time lost to them; processor seconds of this process
    and of the others, wall seconds, memory of all; whole_s, whole_bytes: of 100,000 steps."""

    pool: str
    steps: int
    kinds: int
    changes: int
    lost: float
    step_us: int
    cpu_s: float
    cpu_others_s: float
    wall_s: float
    bytes: int
    whole_s: float
    whole_bytes: int

    @property
    def short(self) -> bool:
        return self.whole_s > SECONDS or self.whole_bytes > BYTES


def measured(name: str, pool: Pool, samples: Samples, steps: int) -> Row:
    """Lay them out, and write the table to a folder that is gone afterwards."""
    before, own, begun = getrusage(RUSAGE_CHILDREN), getrusage(RUSAGE_SELF), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.samples"
        found = arranged(samples, range(steps), pool, "balanced", jobs=JOBS)
        write_table(path, [found])
        held = path.stat().st_size
    wall, after, now = time.monotonic() - begun, getrusage(RUSAGE_CHILDREN), getrusage(RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    others = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    whole = min(STEPS, samples.period) / min(steps, samples.period)  # steps are laid out once
    memory = 1024 * (now.ru_maxrss + JOBS * after.ru_maxrss)
    return Row(
        name,
        steps,
        len(found.kinds),
        len(found.turns) - 1,
        *_times(found, pool, samples),
        cpu,
        others,
        wall,
        memory,
        (cpu + others / JOBS) * whole,
        memory + held // steps * max(0, STEPS - steps),
    )


def _times(found: Arrangement, pool: Pool, samples: Samples) -> tuple[float, int]:
    """The part of the time that is lost to microbatches that steps do not need, and the mean time
    of a step with them; of some steps."""
    kinds = np.repeat(*np.array(found.turns).T)
    fixed = np.ceil(pool.fixed)[pool.type_of]
    least, took = list[int](), list[float]()
    for at in np.unique(np.linspace(0, len(kinds) - 1, TIMED).astype(int)).tolist():
        step = laid_out(pool, samples.of(found.steps[at]), "balanced")
        idle = [
            len(most) - own
            for most, own in zip(found.kinds[kinds[at]].most, step.counts, strict=True)
        ]
        least.append(max(step.us))
        took.append(float((step.us + fixed * idle).max()))
    return sum(took) / sum(least) - 1, round(sum(took) / len(took))


def pools(pipelines: int, longest: int) -> dict[str, Pool]:
    """Equal ones, and two types; s + s^2 / 49,374 us on the slower ones, 1 ms for a microbatch."""
    most = -(-longest // TOKENS) * TOKENS
    slow, fast = Curve(1 / 49_374, 1.0, 1_000.0), Curve(0.5 / 49_374, 0.5, 1_000.0)
    half = max(1, pipelines // 2)
    two = (PipelineType(slow, 2, most, half), PipelineType(fast, 1, most, half))
    return {
        f"{pipelines} equal": Pool((PipelineType(slow, 2, most, pipelines),)),
        f"{half} and {half}": Pool(two),
    }


def lengths(file: Path | None) -> NDArray[np.uint32]:
    """Of a file's documents, or drawn."""
    if file:
        return np.array(json.loads(file.read_text())["lengths"], np.uint32)
    drawn = np.random.default_rng(0).lognormal(np.log(430), 1.1, 1_000_003)  # all steps differ
    return np.clip(drawn, 16, 32_000).astype(np.uint32)


def main() -> int:
    """Both pools."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, metavar="FILE", nargs="?")
    parser.add_argument("--steps", type=int, default=2_000, metavar="N")
    parser.add_argument("--batch", type=int, default=2_000, metavar="N", help="sequences of a step")
    parser.add_argument("--pipelines", type=int, default=8, metavar="N")
    parser.add_argument("--reorder-window", type=int, default=1, metavar="N", help="steps")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    args = parser.parse_args()
    own = lengths(args.file)
    if args.reorder_window > 1:
        own, rest = np.split(own, [args.steps * args.batch])
        own = np.concatenate((own[reorder(own, args.batch, args.reorder_window)], rest))
    samples = Samples(own, args.batch)
    every = pools(args.pipelines, int(samples.lengths.max())).items()
    rows = [measured(name, pool, samples, args.steps) for name, pool in every]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(
            "| pipelines | steps | kinds | changes | lost | step ms | cpu s | others' | wall s "
            "| GiB | 100,000 steps | GiB |"
        )
        print("| --- |" + " ---: |" * 11)
        for row in rows:
            print(
                f"| {row.pool} | {row.steps:,} | {row.kinds} | {row.changes:,} | {row.lost:.2%} | "
                f"{row.step_us / 1000:.1f} | {row.cpu_s:.1f} | {row.cpu_others_s:.1f} | "
                f"{row.wall_s:.1f} | {row.bytes / 2**30:.2f} | {row.whole_s:.0f} s | "
                f"{row.whole_bytes / 2**30:.2f} |"
            )
    return int(any(row.short for row in rows))


if __name__ == "__main__":
    sys.exit(main())
