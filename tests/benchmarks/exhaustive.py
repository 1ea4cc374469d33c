"""The planner against all there is: small tasks, every strategy tried.

    python -m tests.benchmarks.exhaustive --cases 60

Run from the root of the repository. Chains of 1 to 3 layers with every mode, of 4 to 6 with a few
(`support.strategies`). A case is named by its seed and its layers. Prints the planner's period over
the best there is, which may be below 1 where few modes were tried, and in the end what the worst
cases would have had to do. Exits with 1 when one is more than 1 % above.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context

from tqdm import tqdm

from planner.errors import Infeasible
from planner.inputs.problem import Effort
from planner.search.task import Search
from planner.shards.strategy import Strategy
from profiles import console
from tests.support.strategies import PLAIN, WHOLE, Small, shortest, small

ALLOWED = 1.01
_WORST = 12  # shown with their strategies
_SECONDS = 60.0  # for a search


@dataclass(frozen=True)
class Row:
    """A case; None where there is no plan. `found`, `least`: the strategies."""

    seed: int
    layers: int
    ours_us: int | None
    best_us: int | None
    seconds: float
    found: str
    least: str

    @property
    def ratio(self) -> float | None:
        """Ours over the best; infinite when ours missed that there is one."""
        if self.best_us is None:
            return None
        return self.ours_us / self.best_us if self.ours_us else float("inf")


def compare(seed: int, layers: int) -> Row:
    """Search the case, and try everything."""
    case = small(seed, layers)
    begun = time.perf_counter()
    ours_us, found = ours(case)
    seconds = time.perf_counter() - begun
    palette = WHOLE if layers <= 3 else PLAIN
    best = shortest(case.task, case.links, case.device_bytes, palette)
    least = describe(best.strategy) if best else ""
    return Row(seed, layers, ours_us, best and best.period_us, seconds, found, least)


def ours(case: Small) -> tuple[int | None, str]:
    """The planner's period and strategy."""
    try:
        found = Search(case.task, case.links, case.device_bytes).best(
            Effort(time.monotonic() + _SECONDS, 0)
        )
    except Infeasible:
        return None, "infeasible"
    return found.program.period_us, describe(found.strategy)


def describe(strategy: Strategy) -> str:
    """A strategy in a line."""
    shards = " ".join(
        f"{first}-{end}:{mode.params}/{mode.update}/{mode.activations}{'/spilled' * mode.spilled}"
        for (first, end), mode in zip(pairwise(strategy.cuts), strategy.modes, strict=True)
    )
    count = strategy.costs.microbatches
    return f"microbatches {count} block {strategy.block} depth {strategy.depth} {shards}"


def line(row: Row) -> str:
    """A row for people."""
    ratio = f"{row.ratio:.4f}" if row.ratio else "-"
    return (
        f"seed {row.seed:4} layers {row.layers}  ours {row.ours_us or '-':>9}  "
        f"best {row.best_us or '-':>9}  ratio {ratio:>7}  {row.seconds:6.2f} s"
    )


def describe_row(row: Row) -> str:
    """A row with both strategies."""
    return f"{line(row)}\n    ours {row.found}\n    best {row.least}"


def report(rows: Sequence[Row]) -> str:
    """How many, the worst ratio, and the worst cases with both strategies."""
    feasible = sorted((row for row in rows if row.ratio), key=lambda row: -(row.ratio or 0))
    above = [row for row in feasible if (row.ratio or 0) > ALLOWED]
    worst = f"{feasible[0].ratio:.4f}" if feasible else "-"
    lines = [
        f"{len(rows)} cases, {len(feasible)} with a plan, {len(above)} more than 1 % above the "
        f"best, worst ratio {worst}"
    ]
    return "\n".join([*lines, *map(describe_row, above[:_WORST])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare on as many cases as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=console.whole(1, 100_000), default=240)
    parser.add_argument("--first", type=console.whole(0, 10**9), default=0, metavar="SEED")
    parser.add_argument("--layers", type=console.whole(1, 6), help="of every case; or all numbers")
    parser.add_argument("--jobs", type=console.whole(1, 64), default=1)
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.cases)
    asked = [(seed, options.layers or seed % 6 + 1) for seed in seeds]
    rows = []
    for row in _run(asked, options.jobs):
        print(line(row), flush=True)
        rows.append(row)
    print(report(rows))
    return int(any((row.ratio or 0) > ALLOWED for row in rows))


def _run(asked: Sequence[tuple[int, int]], jobs: int) -> Iterator[Row]:
    """Rows in order, each when it is there."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of the new processes
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = pool.map(compare, *zip(*asked, strict=True))
        yield from tqdm(found, total=len(asked), file=sys.stderr, disable=None)


if __name__ == "__main__":
    raise SystemExit(main())
