"""Dispatch problems on 1,024 GPUs that nothing was tuned on: models, pools and lengths by a seed.

A model has a time of a token and of its square on one GPU, and tokens that one GPU holds. A scheme
of tp x pp GPUs divides both, less what tp loses; tp adds room, pp a little. A pool has three to
five schemes of several depths, most GPUs in small ones; steps have 200 to 4,000 sequences.
"""

from collections.abc import Iterator

import numpy as np

from planner.dispatch import Curve, PipelineType, Pool
from planner.dispatch.pipes import Array
from tests.benchmarks.hydraulis import Case

GPUS = 1_024
COUNTS = (200, 500, 1_000, 1_500, 1_501, 2_000, 3_000, 4_000)
KINDS = ("equal", "two-humped", "lognormal", "documents", "heavy tail", "uniform")
_TPS, _PPS = (1, 2, 4, 8), (1, 2, 4, 8)


def held_out(cases: int) -> Iterator[Case]:
    """So many; every kind of lengths and every count in turn."""
    for seed in range(cases):
        rng = np.random.default_rng(seed)
        pool = _pool(rng)
        kind, count = KINDS[seed % len(KINDS)], COUNTS[(seed + seed // len(KINDS)) % len(COUNTS)]
        yield Case(f"{seed} {kind}", GPUS, pool, _lengths(rng, kind, count, pool.longest))


def _pool(rng: np.random.Generator) -> Pool:
    linear, square = rng.uniform(60, 400), rng.uniform(1e-3, 1e-2)
    holds, loss = rng.uniform(1_000, 6_000), rng.uniform(0.05, 0.25)
    many, schemes = int(rng.integers(3, 6)), set[tuple[int, int]]()
    while len(schemes) < many or len({pp for _, pp in schemes}) < 2:
        schemes.add((int(rng.choice(_TPS)), int(rng.choice(_PPS))))
    left, types = GPUS, list[PipelineType]()
    for tp, pp in sorted(schemes, key=lambda own: -own[0] * own[1]):
        last = len(types) == len(schemes) - 1
        count = max(1, int(left / (tp * pp) * (1 if last else rng.uniform(0.05, 0.3))))
        left -= count * tp * pp
        slower = (1 + loss * np.log2(tp)) * rng.uniform(0.97, 1.05) / (tp * pp)
        curve = Curve(square * slower, linear * slower)
        longest = int(holds * tp * (2 - 1 / pp))
        types.append(PipelineType(curve, pp, longest, count))
    return Pool(tuple(types))


def _lengths(rng: np.random.Generator, kind: str, count: int, longest: int) -> Array:
    if kind == "equal":
        drawn = np.full(count, float(rng.integers(200, 2_000)))
    elif kind == "two-humped":
        far = rng.random(count) < rng.uniform(0.05, 0.2)
        drawn = np.where(far, rng.normal(4_000, 500, count), rng.normal(300, 60, count))
    elif kind == "lognormal":
        drawn = rng.lognormal(np.log(430), 1.1, count)
    elif kind == "documents":
        drawn = rng.lognormal(np.log(1_200), 1.5, count)
    elif kind == "heavy tail":
        drawn = 200 * (1 + rng.pareto(1.3, count))
    else:
        drawn = rng.uniform(16, 4_000, count)
    return np.asarray(np.clip(drawn, 16, longest), np.int64)
