"""More is never worse: periods of builds over faster and faster links, and in more and more memory.

    python -m tests.benchmarks.monotone --jobs 2
    python -m tests.benchmarks.monotone --only 'even-17/link/*'

Run from the root of the repository. Two tasks, 50 links of 4 to 100 GB/s and 50 memories of 8 to
106 % of what plain training takes: 200 builds, each by itself. Prints each period that is above the
shortest with less, and by how much; exits with 1 where there is one.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import groupby
from multiprocessing import get_context
from typing import Any

from msgspec import structs
from tqdm import tqdm

from planner.builder import draft
from planner.errors import Infeasible
from planner.inputs.problem import Problem
from profiles import console
from profiles.schema import Link, Rate
from tests.benchmarks.instances import LATENCY_US, Instance, footprint, instances, problem

LINKS = tuple(round(4e9 * 25 ** (n / 49)) for n in range(50))  # bytes per second
PERCENTS = tuple(range(8, 108, 2))
_BASES = "even-17", "bert-large"
_MEMORY_PERCENT, _LINK = 30, 12_000_000_000  # of the sweeps of the other
_SECONDS = 600.0  # for a build: none ends by time


@dataclass(frozen=True)
class Point:
    """A problem of a sweep."""

    base: str
    swept: str  # link or memory
    percent: int
    bytes_per_s: int

    @property
    def sweep(self) -> str:
        return f"{self.base}/{self.swept}"

    @property
    def name(self) -> str:
        value = self.percent if self.swept == "memory" else f"{self.bytes_per_s / 1e9:.2f}"
        return f"{self.sweep}/{value}"


@dataclass(frozen=True)
class Row:
    """The period of a point; None where no plan fits."""

    point: Point
    period_us: int | None


def points() -> list[Point]:
    """All points, ascending in every sweep."""
    every = []
    for base in _BASES:
        every += [Point(base, "link", _MEMORY_PERCENT, rate) for rate in LINKS]
        every += [Point(base, "memory", percent, _LINK) for percent in PERCENTS]
    return every


def problem_of(point: Point) -> Problem:
    """The point as a problem, of adamw and eight microbatches."""
    base: dict[str, Any] = next(one.base for one in instances() if one.base["name"] == point.base)
    of = problem(Instance(base, 100, 1, "adamw", 8))
    kind, rate = of.kinds[0], Rate(point.bytes_per_s, LATENCY_US)
    budget = footprint(kind.tasks[0]) * point.percent // 100
    inside = [link for link in kind.device.links if link.kind == "d2d"]
    links = (Link("h2d", rate, rate), Link("d2h", rate, rate), *inside)
    device = structs.replace(kind.device, links=links)
    return replace(of, kinds=(replace(kind, device=device, device_bytes=budget),))


def solve(point: Point) -> Row:
    """The period of the plan of a point."""
    try:
        plan = draft(problem_of(point), seconds=_SECONDS)
    except Infeasible:
        return Row(point, None)
    return Row(point, plan.programs[0].period_us)


def excess(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Points of a sweep that are above the shortest before them, and by what part of it."""
    least: int | None = None
    for row in rows:
        if least and (row.period_us is None or row.period_us > least):
            more = float("inf") if row.period_us is None else row.period_us / least - 1
            yield row, more
        if row.period_us:
            least = min(row.period_us, least or row.period_us)


def report(rows: Sequence[Row]) -> tuple[str, float]:
    """A line a sweep, one for each point above others, and the worst excess."""
    lines, worst, count = list[str](), 0.0, 0
    for name, own in groupby(rows, key=lambda row: row.point.sweep):
        members = [*own]
        above = [*excess(members)]
        most = max((more for _, more in above), default=0.0)
        lines.append(f"{name}: {len(members)} points, {len(above)} above, worst {most:.2%}")
        lines += [
            f"  {row.point.name}: {row.period_us} µs, {more:.2%} above" for row, more in above
        ]
        worst, count = max(worst, most), count + len(above)
    lines.append(f"{len(rows)} points, {count} above a point with less, worst {worst:.2%}")
    return "\n".join(lines), worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Build all points, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=console.whole(1, 64), default=1)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names: even-17/memory/*")
    options = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of the new processes
    chosen = [one for one in points() if fnmatch(one.name, options.only)]
    rows = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        found = pool.map(solve, chosen)
        for row in tqdm(found, total=len(chosen), file=sys.stderr, disable=None):
            print(f"{row.point.name:28} {row.period_us or '-':>10} µs", flush=True)
            rows.append(row)
    text, worst = report(rows)
    print(text)
    return int(worst > 0)


if __name__ == "__main__":
    raise SystemExit(main())
