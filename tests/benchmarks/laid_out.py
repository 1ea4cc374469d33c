"""Steps as `build` lays them out, against those of plain longest-first.

    python -m tests.benchmarks.laid_out [--documents FILE] [--hydraulis FILE] [--steps N] [--json]

Drawn: lengths of a lognormal, median 430, sigma 1.1, at most 32,000 tokens. --documents: FILE has
the `lengths` of documents; a step has as many of them as have 128k tokens for each stage. A layer's
curve is s + s^2 / 49,374 us divided by the depth; a microbatch takes 0.5 ms more (drawn), or 10 ms
(documents), and has room for a longest sequence. --hydraulis: FILE is one of
`tests.benchmarks.hydraulis`, microbatches take 2 ms more; a row for each of its lists of so many
GPUs that gains most and least, and for each of its own steps on 1,024 GPUs.

Pipelines `4 x 2` are four of two stages, `2+1` one of two and one of one. Longest-first is one
pass that knows no time of microbatches, with moves of up to 256 sequences; both are packed
(`balanced`). Sums over the steps; "bound": that of each step (`step_bounds`), over ours. Exit
code 1 if ours is longer than longest-first by more than 0.1 %.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from planner.dispatch import Curve, PipelineType, Pool, longest_first
from planner.dispatch.moves import improved
from planner.dispatch.pipes import Array
from planner.packing import TOKENS, laid_out, packed
from profiles import console
from tests.benchmarks.hydraulis import cases
from tests.support.step_bounds import bound_us

MOVED, WORSE = 256, 1.001
TOKENS_A_STAGE, MOST = 1 << 17, 32_000
DRAWN = (
    (16, "8 x 1"),
    (16, "4 x 2"),
    (16, "4+2+1+1"),
    (64, "2 x 4"),
    (64, "2+1+1"),
    (64, "4+2+1+1"),
    (256, "8 x 4"),
    (2_000, "8 x 2"),
)
DOCUMENTS = ("4 x 1", "2 x 4", "4 x 4")
GPUS, TOKENS_A_GPU = {16, 32, 64}, 1_562


@dataclass(frozen=True)
class Row:
    """Some steps on the same pipelines; all times are sums over them, in us."""

    lengths: str
    pipelines: str
    sequences: int
    longest_first_us: int
    ours_us: int
    bound_us: int
    ms: float

    @property
    def gain(self) -> float:
        return self.ours_us / self.longest_first_us


def plain_us(pool: Pool, lengths: Array) -> int:
    """A step whose dispatch knows no time of a microbatch."""
    bare = Pool(tuple(replace(t, curve=replace(t.curve, fixed=0.0)) for t in pool.types))
    places = longest_first(bare, lengths)
    if len(lengths) <= MOVED:
        places = improved(bare, lengths, places)
    took = []
    for number, at in enumerate(pool.type_of.tolist()):
        one, sizes = pool.types[at], lengths[places == number].tolist()
        found = packed(sizes, "balanced", one.longest, one.curve, one.depth)
        took.append(found.total_us(one.depth))
    return max(took)


def row(name: str, pipelines: str, pool: Pool, steps: Sequence[Array]) -> Row:
    begun = time.process_time()
    ours = [max(laid_out(pool, lengths, "balanced").us) for lengths in steps]
    spent = time.process_time() - begun
    return Row(
        name,
        pipelines,
        sum(map(len, steps)) // len(steps),
        sum(plain_us(pool, lengths) for lengths in steps),
        sum(ours),
        sum(bound_us(pool, lengths) for lengths in steps),
        1000 * spent / len(steps),
    )


def pool_of(pipelines: str, longest: int, fixed: float) -> Pool:
    """These pipelines, of which each stage has its share of the layers."""
    if " x " in pipelines:
        count, depth = map(int, pipelines.split(" x "))
        depths = [depth] * count
    else:
        depths = list(map(int, pipelines.split("+")))
    most = -(-longest // TOKENS) * TOKENS
    return Pool(
        tuple(
            PipelineType(Curve(1 / 49_374 / d, 1 / d, fixed), d, most, depths.count(d))
            for d in sorted(set(depths), reverse=True)
        )
    )


def rows(options: argparse.Namespace) -> Iterator[Row]:
    rng, most = np.random.default_rng(0), options.steps
    for count, pipelines in DRAWN:
        drawn = np.clip(rng.lognormal(np.log(430), 1.1, (most, count)), 16, MOST).astype(np.int64)
        yield row("drawn", pipelines, pool_of(pipelines, MOST, 500.0), list(drawn))
    if options.documents:
        lengths = np.array(json.loads(options.documents.read_text())["lengths"], np.int64)
        for pipelines in DOCUMENTS:
            pool = pool_of(pipelines, int(lengths.max()), 10_000.0)
            stages = sum(one.depth * one.count for one in pool.types)
            ends = np.cumsum(lengths) // (TOKENS_A_STAGE * stages)
            steps = np.split(lengths, np.flatnonzero(np.diff(ends)) + 1)[:-1][:most]
            yield row("documents", pipelines, pool, steps)
    if options.hydraulis:
        yield from _hydraulis(json.loads(options.hydraulis.read_text()))


def _hydraulis(read: dict[str, object]) -> Iterator[Row]:
    """The step on 1,024 GPUs, and the lists that gain most and least."""
    found = []
    for case in cases(read, GPUS, TOKENS_A_GPU, 0):
        types = (replace(t, curve=replace(t.curve, fixed=2_000.0)) for t in case.pool.types)
        found.append(row(f"{case.gpus} GPUs", case.name, Pool(tuple(types)), [case.lengths]))
    own = [one for one in found if one.pipelines.startswith("seed")]
    ranked = sorted((one for one in found if one not in own), key=lambda one: one.gain)
    yield from [*own, *ranked[:1], *ranked[-1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=Path, metavar="FILE")
    parser.add_argument("--hydraulis", type=Path, metavar="FILE")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="of a row, at most")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    options = parser.parse_args()
    found = list(rows(options))
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        told = [("lengths", "pipelines", "sequences", "over longest-first", "bound", "ms a step")]
        for one in found:
            ratios = (f"{one.gain:.3f}", f"{one.bound_us / one.ours_us:.3f}")
            told.append(
                (one.lengths, one.pipelines, f"{one.sequences:,}", *ratios, f"{one.ms:.1f}")
            )
        print("\n".join(console.columns(told)))
    return int(any(one.gain > WORSE for one in found))


if __name__ == "__main__":
    sys.exit(main())
