"""Documents of real lengths to equal pipelines, to merged ones, and moved between steps.

    python -m tests.benchmarks.documents FILE [--sequences 4,8,16,32,64] [--steps N]
        [--reorder-window 4,16] [--efficiency E] [--json]

FILE has `lengths`: tokens of documents, in order. A step has as many of them, in turn, as fit into
so many sequences of 128k tokens, and as many equal pipelines as such sequences, of one stage each.
A document of s tokens takes s + s^2 / 49,374 there; a thousandth of that is one µs here.

equal: each step has to be within 0.1 % of the mean load or the longest document, whichever is more,
and take at most 20 ms of processor time on average. merged: k of the pipelines are one, which is
E k times as fast (0.9: a tenth is lost to communication) and holds the same documents. Of all such
mixes (k = 2, 4, 8, 16; as many merged ones as there may be) the one that is best for a few steps is
shown, with the bound that integer programs prove. At 16 sequences that bound has to be at least
10 % below that of equal pipelines, and ours within 1 % of it. window: on equal pipelines, with the
documents of N steps `by_length`, each with as many as it had; its tokens change, and so does the
training. Exit code 1 if a row falls short.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from planner.dispatch import (
    Curve,
    PipelineType,
    Pool,
    dispatches,
    longest_first,
)
from planner.dispatch.pipes import Array
from profiles import console
from profiles.lengths import by_length
from tests.benchmarks.proof import proven_us
from tests.support.step_bounds import bound_us

TOKENS = 128 * 1024
QUADRATIC = 49_374
SCALE = 1000
TRIED = 10  # steps on which mixes are tried
CLOSE, SECONDS = 0.001, 0.020  # equal pipelines: above the bound in every step; for a step
LOWER, NEAR, AT = 0.10, 0.01, 16  # merged: the bound's fall, ours above it, sequences a step


@dataclass(frozen=True)
class Row:
    """All steps on one pool. Times are sums over steps; worst: the largest gap of a step."""

    sequences: int
    pipelines: str
    steps: int
    ours_us: int
    bound_us: int
    equal_us: int  # the bound of equal pipelines, without a window
    worst: float
    cpu_s: float  # a step

    @property
    def gap(self) -> float:
        return self.ours_us / self.bound_us - 1

    @property
    def short(self) -> bool:
        if self.pipelines == "equal":
            return self.worst > CLOSE or self.cpu_s > SECONDS
        if self.pipelines.startswith("merged") and self.sequences == AT:
            return self.bound_us > (1 - LOWER) * self.equal_us or self.gap > NEAR
        return False


def steps_of(lengths: Array, sequences: int) -> list[Array]:
    """Whole steps of consecutive documents."""
    steps, begin, room = [], 0, sequences * TOKENS
    ends = np.cumsum(lengths)
    while begin < len(lengths):
        before = ends[begin - 1] if begin else 0
        end = int(np.searchsorted(ends, before + room, side="right"))
        if end == len(lengths):
            break  # the last step is not full
        steps.append(lengths[begin:end])
        begin = end
    return steps


def merged_pool(sequences: int, longest: int, k: int, count: int, efficiency: float) -> Pool:
    """So many merged pipelines of k, and single ones."""
    one = PipelineType(_curve(1), 1, longest, max(1, sequences - k * count))
    if not count:
        return Pool((one,))
    fast = PipelineType(_curve(efficiency * k), 1, longest, count)
    return Pool((fast, one) if sequences > k * count else (fast,))


def _curve(speed: float) -> Curve:
    return Curve(SCALE / QUADRATIC / speed, SCALE / speed)


def row(pool: Pool, steps: Sequence[Array], sequences: int, name: str, equal_us: int | None) -> Row:
    """Dispatch all steps."""
    mixed = len(pool.types) > 1
    begun = time.process_time()
    found = [_dispatched_us(pool, one) for one in steps]
    cpu = (time.process_time() - begun) / len(steps)
    bounds = [mean_or_longest(pool, one) for one in steps]
    if mixed:
        bounds = [_proven(pool, *pair) for pair in zip(steps, found, strict=True)]
    worst = max(us / bound - 1 for us, bound in zip(found, bounds, strict=True))
    total = sum(bounds)
    return Row(
        sequences, name, len(steps), sum(found), total, equal_us or total, worst, round(cpu, 4)
    )


def _dispatched_us(pool: Pool, lengths: Array) -> int:
    """The time of a step, dispatched as `build` does it."""
    times = pool.times(lengths)
    return min(int(pool.finishes(times, one).max()) for one in dispatches(pool, lengths))


def _proven(pool: Pool, lengths: Array, us: int) -> int:
    """The bound of the linear program, or what integer programs prove where it is far from ours."""
    bound = bound_us(pool, lengths)
    return bound if us <= (1 + NEAR) * bound else proven_us(pool, lengths, bound, us, seconds=2)


def mean_or_longest(pool: Pool, lengths: Array) -> int:
    """The bound for equal pipelines."""
    times = pool.times(lengths)[0]
    return max(int(times.sum()) // pool.pipelines, int(times.max()))


def best_mix(
    sequences: int, steps: Sequence[Array], longest: int, efficiency: float
) -> tuple[str, Pool]:
    """The mix on which a few steps take the least, dispatched longest first."""
    best = None
    few = steps[:: max(1, len(steps) // TRIED)]
    for k in (2, 4, 8, 16):
        for count in range(1, sequences // k + 1):
            pool = merged_pool(sequences, longest, k, count, efficiency)
            times = [pool.times(one) for one in few]
            places = [longest_first(pool, one) for one in few]
            us = sum(int(pool.finishes(*pair).max()) for pair in zip(times, places, strict=True))
            if best is None or us < best[0]:
                best = us, f"merged {count}x{k}", pool
    assert best
    return best[1:]


def rows(
    lengths: Array, sequences: int, most: int, windows: Sequence[int], efficiency: float
) -> Iterator[Row]:
    """Equal pipelines, the best mix, and windows."""
    longest = int(lengths.max())
    steps = steps_of(lengths, sequences)[:most]
    pool = merged_pool(sequences, longest, 1, 0, efficiency)
    equal = row(pool, steps, sequences, "equal", None)
    yield equal
    name, mixed = best_mix(sequences, steps, longest, efficiency)
    yield row(mixed, steps, sequences, name, equal.bound_us)
    for window in windows:
        moved = [
            own
            for begin in range(0, len(steps), window)
            for own in _reordered(steps[begin : begin + window])
        ]
        yield row(pool, moved, sequences, f"window {window}", equal.bound_us)


def _reordered(steps: Sequence[Array]) -> list[Array]:
    """Steps of the same sizes with the samples of all of them by length."""
    every = np.concatenate(steps)
    return [every[own] for own in by_length(every, [len(one) for one in steps])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--sequences", default="4,8,16,32,64", help="a step (4,8,16,32,64)")
    parser.add_argument("--steps", type=int, default=100, help="first ones (100)")
    parser.add_argument("--reorder-window", default="4,16", help="steps (4,16)")
    parser.add_argument("--efficiency", type=float, default=0.9, help="of merging (0.9)")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    lengths = np.array(json.loads(chosen.file.read_text())["lengths"])
    windows = [int(text) for text in chosen.reorder_window.split(",")]
    made = [
        one
        for many in map(int, chosen.sequences.split(","))
        for one in rows(lengths, many, chosen.steps, windows, chosen.efficiency)
    ]
    if chosen.json:
        print(json.dumps([{**asdict(one), "gap": one.gap, "short": one.short} for one in made]))
    else:
        print("\n".join(console.columns(_table(made), numbers=True)))
    return int(any(one.short for one in made))


_HEAD = (
    *("sequences", "pipelines", "steps", "ours s", "bound s", "gap", "worst step"),
    *("bound, of equal", "ms a step", ""),
)


def _table(made: Sequence[Row]) -> list[Sequence[str]]:
    cells: list[Sequence[str]] = [_HEAD]
    for one in made:
        cells.append(
            (
                f"{one.sequences}",
                one.pipelines,
                f"{one.steps}",
                f"{one.ours_us / 1e6:.2f}",
                f"{one.bound_us / 1e6:.2f}",
                f"{one.gap:.3%}",
                f"{one.worst:.3%}",
                f"{one.bound_us / one.equal_us:.3f}",
                f"{1000 * one.cpu_s:.1f}",
                "SHORT" if one.short else "",
            )
        )
    return cells


if __name__ == "__main__":
    sys.exit(main())
