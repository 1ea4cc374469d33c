"""Which pipelines for given lengths, against a published dynamic program's optimum.

    python -m tests.benchmarks.proposal FILE [--json]

FILE has `strategies` (tp, pp, and a, b, c: a s^2 + b s + c ms for s tokens on each stage),
`max_tokens` (per_strategy) and a `proposal`: `histogram` (the lengths of sequences, or a rule by
which they are drawn), N devices, and `results`: S_step, the grid on which intervals of lengths
end; best_ms, the optimum there.

A plan gives each interval to copies of one strategy; it takes the longest of (sum of times + (pp -
1) x the longest of them) / copies. Ours ends intervals anywhere and is exact for that; its time is
added up anew from the plan. The bound is for any division of the sequences and any mix.

Exits 1 where ours is above theirs, or takes more than 10 s of processor time.
"""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import Curve
from planner.mixes import Interval, Offer, divided
from tests.benchmarks.published import Judged, compared
from tests.support.mix_bound import mix_bound_us

SECONDS = 10.0
_DRAWN = re.compile(
    r"(?P<count>\d+) .*lognormal\(median (?P<median>[\d.]+), sigma (?P<sigma>[\d.]+)\) "
    r"clipped to \[(?P<low>\d+),(?P<high>\d+)\], numpy default_rng\((?P<seed>\d+)\)"
)


@dataclass(frozen=True)
class Row(Judged):
    """Of a grid of theirs; ms. plan: (above, up to, tp, pp, copies); gap: (ours - bound) / ours."""

    case: str
    ours: float
    theirs: float
    bound: float
    gap: float
    cpu_s: float
    plan: tuple[tuple[int, int, int, int, int], ...]

    @property
    def short(self) -> bool:
        return self.ours > self.theirs * (1 + 1e-9) or self.cpu_s > SECONDS


def lengths_of(histogram: Any) -> NDArray[np.int64]:
    """A list as it is, or drawn by the rule."""
    if not isinstance(histogram, str):
        return np.array(histogram, np.int64)
    rule = _DRAWN.search(histogram)
    if rule is None:
        raise ValueError(f"no rule that is known: {histogram}")
    dice = np.random.default_rng(int(rule["seed"]))
    drawn = dice.lognormal(np.log(float(rule["median"])), float(rule["sigma"]), int(rule["count"]))
    return np.clip(drawn.astype(np.int64), int(rule["low"]), int(rule["high"]))


def offers_of(data: dict[str, Any]) -> list[Offer]:
    """The strategies that fit, with times in us."""
    return [
        Offer(
            one["tp"] * one["pp"],
            Curve(1000 * one["a"], 1000 * one["b"], 1000 * one["c"]),
            one["pp"],
            max(0, longest),
        )
        for one, longest in zip(data["strategies"], data["max_tokens"]["per_strategy"], strict=True)
    ]


def value(
    strategies: Sequence[dict[str, Any]], plan: Sequence[Sequence[int]], lengths: NDArray[np.int64]
) -> float:
    """The ms of a plan in the file's words: (above, up to, tp, pp, copies)."""
    costs = {(one["tp"], one["pp"]): (one["a"], one["b"], one["c"]) for one in strategies}
    slowest, done = 0.0, 0
    for above, to, tp, pp, copies in plan:
        a, b, c = costs[tp, pp]
        own = lengths[(lengths > above) & (lengths <= to)]
        times = a * own**2 + b * own + c
        done += len(own)
        if len(own):
            slowest = max(slowest, float(times.sum() + (pp - 1) * times.max()) / copies)
    if done != len(lengths):
        raise ValueError(f"a plan has {done} of {len(lengths)} sequences")
    return slowest


def rows(data: dict[str, Any]) -> Iterator[Row]:
    """A row for each of their results."""
    if "proposal" not in data:
        return
    given, strategies = data["proposal"], data["strategies"]
    lengths, offers = lengths_of(given["histogram"]), offers_of(data)
    for result in given["results"]:
        begun = time.process_time()
        found = divided(offers, given["N"], lengths)
        spent = time.process_time() - begun
        if found is None:
            raise ValueError(f"no strategy holds {lengths.max()} tokens")
        plan = tuple(_told(one, strategies) for one in found.intervals)
        _check(plan, data, lengths)
        ours, theirs = value(strategies, plan, lengths), value(strategies, result["plan"], lengths)
        if abs(theirs - result["best_ms"]) > 0.01:
            raise ValueError(f"their plan takes {theirs} ms, the file says {result['best_ms']}")
        bound = mix_bound_us(offers, given["N"], lengths) / 1000
        gap = (ours - bound) / ours
        yield Row(f"S_step {result['S_step']}", ours, theirs, bound, gap, spent, plan)


def _told(one: Interval, strategies: Sequence[dict[str, Any]]) -> tuple[int, int, int, int, int]:
    own = strategies[one.offer]
    return (one.above, one.to, own["tp"], own["pp"], one.pipelines)


def _check(
    plan: Sequence[tuple[int, int, int, int, int]], data: dict[str, Any], lengths: NDArray[np.int64]
) -> None:
    """ValueError for a plan that has too many GPUs, or a sequence that does not fit."""
    most = {
        (one["tp"], one["pp"]): longest
        for one, longest in zip(data["strategies"], data["max_tokens"]["per_strategy"], strict=True)
    }
    gpus = sum(copies * tp * pp for _, _, tp, pp, copies in plan)
    if gpus > data["proposal"]["N"] or any(most[tp, pp] < to for _, to, tp, pp, _ in plan):
        raise ValueError(f"no plan for {data['proposal']['N']} GPUs: {plan}")


def table(found: Sequence[Row]) -> Iterator[str]:
    """For people."""
    yield "| case | ours ms | theirs ms | ours/theirs | bound ms | gap | cpu s |"
    yield "| --- |" + " ---: |" * 6
    for row in found:
        yield (
            f"| {row.case} | {row.ours:.1f} | {row.theirs:.1f} | {row.ours / row.theirs:.4f} | "
            f"{row.bound:.1f} | {row.gap:.2%} | {row.cpu_s:.2f} |"
        )
        for above, to, tp, pp, copies in row.plan:
            yield f"  {above} to {to} tokens: {copies} of tp {tp} pp {pp}"


def main() -> int:
    """Every case of the file."""
    return compared(__doc__, "proposal", rows, table)


if __name__ == "__main__":
    sys.exit(main())
