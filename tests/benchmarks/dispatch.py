"""Sequences of one step to pipelines, on Hydraulis' spaces, against a bound and their greedy.

    python -m tests.benchmarks.dispatch FILE [--gpus 16,32,64] [--tokens N] [--orders N] [--json]
    python -m tests.benchmarks.dispatch --held-out 48 [--json]

FILE, its steps and how lengths are drawn are described in `tests.benchmarks.hydraulis`; each list
of strategies gets 1,562 tokens a GPU, as many as the 1,024 GPUs of the first file have. --held-out:
so many steps of `tests.benchmarks.spaces` instead, without the greedy.

ours: the best of `dispatches`, which `build` packs. one-pass: longest-first. theirs: the best of 50
random orders (`tests.benchmarks.shuffled_greedy`). bound: that of the linear program, or what
integer programs or patterns prove above it, in `proof` seconds. All times of a step in ms. Ours has
to be at most 2 % above the bound, no later than one pass, and found in 2 s of processor time, bound
of the linear program included. Exit code 1 if a row falls short.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from planner.dispatch import Pool, dispatches, longest_first
from planner.dispatch.pipes import Array
from profiles import console
from tests.benchmarks.hydraulis import Case, cases
from tests.benchmarks.patterns import held_us
from tests.benchmarks.proof import proven_us
from tests.benchmarks.shuffled_greedy import shuffled_greedy
from tests.benchmarks.spaces import held_out
from tests.support.step_bounds import bound_us

ABOVE = 0.02
SECONDS = 2
_CLOSE = 0.001  # above the linear program's bound, at which nothing more is proven


@dataclass(frozen=True)
class Row:
    """A step. Times in µs."""

    gpus: int
    case: str
    sequences: int
    ours_us: int
    one_pass_us: int
    theirs_us: int
    linear_us: int
    bound_us: int
    cpu_s: float
    proof_s: float

    @property
    def gap(self) -> float:
        return self.ours_us / self.bound_us - 1

    @property
    def short(self) -> bool:
        late = self.gap > ABOVE or self.ours_us > self.one_pass_us
        return late or self.cpu_s > SECONDS


def row(case: Case, orders: int, prove: Callable[[Pool, Array, int, int], int]) -> Row:
    """Dispatch a step in three ways, and prove a bound."""
    pool, lengths = case.pool, case.lengths
    begun = time.process_time()
    times = pool.times(lengths)
    us = min(int(pool.finishes(times, one).max()) for one in dispatches(pool, lengths))
    linear = bound = bound_us(pool, lengths)
    done = time.process_time()
    if us > (1 + _CLOSE) * bound:
        bound = prove(pool, lengths, bound, us)
    proven = time.process_time()
    first = longest_first(pool, lengths)
    theirs = shuffled_greedy(pool, lengths, orders) if orders else first
    return Row(
        case.gpus,
        case.name,
        len(lengths),
        us,
        int(pool.finishes(times, first).max()),
        int(pool.finishes(times, theirs).max()),
        linear,
        bound,
        round(done - begun, 3),
        round(proven - done, 2),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--held-out", type=int, default=0, metavar="N", help="steps, not of a file")
    parser.add_argument("--gpus", default="16,32,64", help="lists of so many (16,32,64)")
    parser.add_argument("--tokens", type=int, default=1562, help="a step and GPU, in lists (1562)")
    parser.add_argument("--orders", type=int, default=50, help="of the greedy (50)")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if bool(chosen.file) == bool(chosen.held_out):
        parser.error("either FILE or --held-out")
    if chosen.held_out:
        rows = [row(case, 0, held_us) for case in held_out(chosen.held_out)]
    else:
        gpus, read = (
            {int(one) for one in chosen.gpus.split(",")},
            json.loads(chosen.file.read_text()),
        )
        found = cases(read, gpus, chosen.tokens, seed=0)
        rows = [row(case, chosen.orders, partial(proven_us, seconds=20)) for case in found]
    if chosen.json:
        print(json.dumps([{**asdict(one), "gap": one.gap, "short": one.short} for one in rows]))
    else:
        print("\n".join(console.columns(_table(rows), numbers=True)))
    return int(any(one.short for one in rows))


_HEAD = (
    *("gpus", "case", "sequences", "ours ms", "one-pass", "theirs", "linear", "bound", "gap"),
    *("cpu s", "proof s", ""),
)


def _table(rows: Sequence[Row]) -> list[Sequence[str]]:
    cells: list[Sequence[str]] = [_HEAD]
    for one in rows:
        times = (one.ours_us, one.one_pass_us, one.theirs_us, one.linear_us, one.bound_us)
        cells.append(
            (
                f"{one.gpus}",
                one.case,
                f"{one.sequences}",
                *(f"{us / 1000:.1f}" for us in times),
                f"{one.gap:.2%}",
                f"{one.cpu_s:.2f}",
                f"{one.proof_s:.1f}",
                "SHORT" if one.short else "",
            )
        )
    return cells


if __name__ == "__main__":
    sys.exit(main())
