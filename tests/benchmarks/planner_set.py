"""The planner on 1,440 instances: how near its bound, how fast, how far ahead of the baseline.

    python -m tests.benchmarks.planner_set --quick
    python -m tests.benchmarks.planner_set --only 'gpt2-xl/*' --jobs 2

Run from the root of the repository. `instances` says what the set holds. Times are of one round;
its bound is that of the makespan, shared among 1,000 steps.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context

from tqdm import tqdm

from planner.builder import build
from planner.errors import Infeasible, NoPlanFound
from planner.inputs.problem import Problem
from plans.schema import Plan, Program
from profiles import console
from profiles.units import show_bytes
from tests.benchmarks.instances import Instance, instances, problem

QUICK_EVERY, QUICK_SECONDS = 13, 60.0


@dataclass(frozen=True)
class Row:
    """What came out for an instance. Times of one round; None where there is no plan."""

    name: str
    base: str
    memory_percent: int
    link_gb_per_s: int
    optimizer: str
    microbatches: int
    status: str  # ok, infeasible, no plan in time, or how it FAILED
    seconds: float  # of the processor
    period_us: int | None = None
    bound_us: float | None = None
    bound: str = ""
    link_bound: bool = False
    hydra_us: int | None = None
    smallest_bytes: int | None = None

    @property
    def gap(self) -> float | None:
        """(period - bound) / period."""
        if not self.period_us or self.bound_us is None:
            return None
        return 1 - self.bound_us / self.period_us

    @property
    def ratio(self) -> float | None:
        """The baseline's period over ours."""
        return self.hydra_us / self.period_us if self.hydra_us and self.period_us else None


def solve(instance: Instance, seconds: float, hydra: bool = True) -> Row:
    """Plan the instance, where asked by the baseline as well."""
    place = asdict(instance) | {"base": instance.base["name"], "name": instance.name}
    asked = problem(instance)
    begun = time.process_time()
    try:
        plan = build(asked, profile_sha256="0" * 64, seconds=seconds, seed=0)
    except Exception as error:  # one that fails is a finding, and no reason to lose the others
        spent = time.process_time() - begun
        least = error.smallest if isinstance(error, Infeasible) else None
        return Row(**place, status=_why(error), seconds=spent, smallest_bytes=least)
    spent = time.process_time() - begun
    steps, prediction = instance.base["steps"], plan.prediction
    return Row(
        **place,
        status="ok",
        seconds=spent,
        period_us=plan.programs[0].period_us,
        bound_us=prediction.lower_bound_us / steps,
        bound=prediction.lower_bound_name,
        link_bound=_link_bound(plan),
        hydra_us=_hydra(asked, seconds) if hydra else None,
    )


def _why(error: Exception) -> str:
    if isinstance(error, Infeasible):
        return "infeasible"
    if isinstance(error, NoPlanFound):
        return "no plan in time"
    return f"FAILED, {type(error).__name__}: {error}"


def _hydra(asked: Problem, seconds: float) -> int | None:
    try:
        plan = build(asked, profile_sha256="0" * 64, policy="hydra", seconds=seconds, seed=0)
    except (Infeasible, NoPlanFound):
        return None
    return plan.programs[0].period_us


def _link_bound(plan: Plan) -> bool:
    """True if a link is busier than the compute stream."""
    busy = _busy_us(plan.programs[0])
    link = max(busy.get("0.h2d", 0), busy.get("0.d2h", 0))
    return link > busy.get("0.compute", 0)


def _busy_us(program: Program) -> dict[str, int]:
    busy: dict[str, int] = {}
    for op in program.round:
        busy[op.stream] = busy.get(op.stream, 0) + op.end_us - op.start_us
    return busy


def line(row: Row) -> str:
    """A row for people."""
    if row.status != "ok":
        least = show_bytes(row.smallest_bytes) if row.smallest_bytes else "-"
        return f"{row.name:44} {row.status}, smallest budget {least}, {row.seconds:.1f} s"
    ratio = f"{row.ratio:.2f}" if row.ratio else "-"
    return (
        f"{row.name:44} {row.period_us:>10} µs  {row.bound:14} gap {row.gap or 0:6.2%}  "
        f"{row.seconds:5.1f} s  hydra/ours {ratio}"
    )


_HEAD = ("group", "instances", "planned", "gap median", "p90", "worst", "hydra/ours median",
         "p10", "worst", "processor s median", "worst")  # fmt: skip


def groups(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line per group: all, link-bound, and every value of every dimension."""
    made: list[tuple[str, list[Row]]] = [("all", list(rows))]
    made.append(("link-bound", [row for row in rows if row.link_bound]))
    for key in ("base", "memory_percent", "link_gb_per_s", "optimizer", "microbatches"):
        for value in dict.fromkeys(getattr(row, key) for row in rows):
            made.append((f"{key} {value}", [r for r in rows if getattr(r, key) == value]))
    return [_HEAD, *((name, *_figures(members)) for name, members in made)]


def _figures(rows: Sequence[Row]) -> tuple[str, ...]:
    gaps = sorted(row.gap for row in rows if row.gap is not None)
    ratios = sorted(row.ratio for row in rows if row.ratio is not None)
    seconds = sorted(row.seconds for row in rows if row.status == "ok")
    return (
        str(len(rows)),
        str(len(seconds)),
        *_shown(gaps, (statistics.median, rank(0.9), max), "{:.2%}"),
        *_shown(ratios, (statistics.median, rank(0.1), min), "{:.2f}"),
        *_shown(seconds, (statistics.median, max), "{:.1f}"),
    )


def rank(share: float) -> Callable[[Sequence[float]], float]:
    return lambda values: values[math.ceil(share * len(values)) - 1]


def _shown(
    values: Sequence[float], each: Iterable[Callable[[Sequence[float]], float]], form: str
) -> Iterator[str]:
    for one in each:
        yield form.format(one(values)) if values else "-"


def markdown(rows: Sequence[Row]) -> str:
    """The groups as a table, then what has no plan."""
    head, *body = groups(rows)
    table = [head, ("---",) + ("---:",) * (len(head) - 1), *body]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    lines += ["", "Without a plan:", ""]
    return "\n".join(
        lines + ([f"- {line(row)}" for row in rows if row.status != "ok"] or ["- none"])
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen part of the set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=console.whole(1, 64), default=1)
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names like this: gpt2*/mem20/*"
    )
    parser.add_argument("--quick", action="store_true", help="one in 13")
    parser.add_argument("--time-limit", type=console.seconds, default=30.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    chosen = [one for one in instances() if fnmatch(one.name, options.only)]
    seconds = QUICK_SECONDS if options.quick else options.time_limit
    chosen = chosen[:: QUICK_EVERY if options.quick else 1]
    rows = list(solved(chosen, options.jobs, seconds))
    print(markdown(rows))
    return int(any(row.status.startswith("FAILED") for row in rows))


def solved(
    chosen: Sequence[Instance], jobs: int, seconds: float, *, hydra: bool = True
) -> Iterator[Row]:
    """Rows in order, each printed when it is there."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of the new processes
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = pool.map(partial(solve, seconds=seconds, hydra=hydra), chosen)
        for row in tqdm(found, total=len(chosen), file=sys.stderr, disable=None):
            print(line(row), flush=True)
            yield row


if __name__ == "__main__":
    raise SystemExit(main())
