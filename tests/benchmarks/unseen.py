"""How near its bound a plan for one device is, on 36 instances that no limit was tuned for.

    python -m tests.benchmarks.unseen --jobs 2
    python -m tests.benchmarks.unseen --only 'llama-13b/*' --before earlier.txt

Run from the root of the repository. Four models that `planner_set` does not have, three memories,
links of 6 to 50 GB/s; eight microbatches, adamw. Prints every period, then median, 90th percentile
and worst of the gaps. --before: what it printed earlier; exits with 1 where a plan is more than
0.5 % longer than that one.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from profiles import console
from tests.benchmarks.instances import Instance
from tests.benchmarks.planner_set import Row, rank, solved

MODELS = (("gpt2-large", "4090"), ("gpt3-6.7b", "a100-40"), ("llama-13b", "4090"),
          ("vit-2b", "4090"))  # fmt: skip
MEMORY_PERCENT, GB_PER_S = (15, 30, 60), (6, 16, 50)
ALLOWED = 1.005
_SECONDS = 600.0  # for a build: none ends by time


def unseen() -> list[Instance]:
    """The instances, in the order in which they are printed."""
    bases = [
        {"kind": "model", "name": name, "gpu": gpu, "batch": 16, "steps": 1_000}
        for name, gpu in MODELS
    ]
    return [
        Instance(base, percent, rate, "adamw", 8)
        for base, percent, rate in product(bases, MEMORY_PERCENT, GB_PER_S)
    ]


def figures(rows: Sequence[Row]) -> str:
    """Gaps and processor seconds of all rows with a plan."""
    gaps = sorted(row.gap for row in rows if row.gap is not None)
    seconds = sorted(row.seconds for row in rows if row.gap is not None)
    if not gaps:
        return f"{len(rows)} instances, none planned"
    return (
        f"{len(rows)} instances, {len(gaps)} planned; gap median {statistics.median(gaps):.2%}, "
        f"p90 {rank(0.9)(gaps):.2%}, worst {gaps[-1]:.2%}; processor seconds median "
        f"{statistics.median(seconds):.1f}, worst {seconds[-1]:.1f}"
    )


def periods(text: str) -> dict[str, int]:
    """By the names of instances the periods that were printed."""
    cells = [row.split() for row in text.splitlines()]
    return {one[0]: int(one[1]) for one in cells if len(one) > 2 and one[2] == "µs"}


def longer(rows: Sequence[Row], before: Mapping[str, int]) -> list[str]:
    """What is to be said of plans that are longer than before."""
    return [
        f"{row.name}: {row.period_us} µs, before {before[row.name]} µs"
        for row in rows
        if row.name in before and (row.period_us or 0) > ALLOWED * before[row.name]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan them all, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=console.whole(1, 64), default=1)
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names like this: gpt*/mem15/*"
    )
    parser.add_argument("--before", type=Path, metavar="FILE", help="what this printed earlier")
    options = parser.parse_args(arguments)
    chosen = [one for one in unseen() if fnmatch(one.name, options.only)]
    rows = list(solved(chosen, options.jobs, _SECONDS, hydra=False))
    print(figures(rows))
    before = periods(options.before.read_text()) if options.before else {}
    worse = longer(rows, before)
    for one in worse:
        print(f"longer: {one}")
    return int(bool(worse) or any(row.status != "ok" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
