"""The zero-bubble paper's settings: the cost of our order, the published one, and the bound.

    python -m tests.benchmarks.zero_bubble zero_bubble.json [--json]

The file has the times of a forward, of input and of weight gradients and of a send in ms, equal on
all stages; p stages, m microbatches and a limit of k*p microbatches in flight, for k = 1 and 2. A
forward holds two units, of which one is left from the input gradients to the weight gradients.
Cost: the largest time over the stages from the first pass to the last, where stages may start late.

    settings          p, m, T_F, T_B, T_W, T_comm; published: `cost_ms` of the heuristic, by limit
                      ("ZB-1p", "ZB-2p"), and `improved` (limit, cost_ms) where that is known
    unit_instances    p, m, limit ("1p"); published: the optimum, in units
    small_instances   p, m, limit; published: `optimum_ms`, or `best_ms`, the best known. Their
                      times are in notes.small_instances: "T_F 29.7, T_B 29.4, T_W 19.9, T_comm .5;"

Exits 1 where our cost is above the published one or a case takes more than 10 s of processor time.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from planner.orders import Cost, Pipeline, bounds, searched
from tests.support.order_check import check, spans

BUDGET = 4_000_000  # passes timed
SECONDS = 10.0
HELD, LEFT = 2, 1


@dataclass(frozen=True)
class Case:
    """A pipeline, the published cost and, where known, a better one; in µs, or in units."""

    name: str
    pipeline: Pipeline
    published: int
    best: int | None = None


@dataclass(frozen=True)
class Row:
    """What came out; `gap` is (ours - bound) / ours."""

    case: str
    ours: int
    published: int
    best: int | None
    bound: int
    gap: float
    seconds: float

    @property
    def enough(self) -> bool:
        """No worse than what is known, within the time."""
        return self.ours <= min(self.published, self.best or self.published) and (
            self.seconds <= SECONDS
        )


def cases(data: dict[str, Any]) -> Iterator[Case]:
    """All of a file."""
    for row in data["settings"]:
        better = row.get("improved", {})
        for limit in ("1p", "2p"):
            times = [_us(row[key]) for key in ("T_F", "T_B", "T_W", "T_comm")]
            best = _us(better["cost_ms"]) if better.get("limit") == limit else None
            published = _us(row["cost_ms"][f"ZB-{limit}"])
            yield Case(_name("setting", row, limit), _pipeline(row, limit, times), published, best)
    for row in data["unit_instances"]:
        pipeline = _pipeline(row, row["limit"], [1, 1, 1, 0])
        yield Case(_name("unit", row, row["limit"]), pipeline, int(row["optimum"]))
    times = _small_times(data["notes"]["small_instances"])
    for row in data["small_instances"]:
        known = _us(row["optimum_ms"] if "optimum_ms" in row else row["best_ms"])
        pipeline = _pipeline(row, row["limit"], times)
        yield Case(_name("small", row, row["limit"]), pipeline, known)


def _us(milliseconds: Decimal | int) -> int:
    return int((Decimal(milliseconds) * 1000).to_integral_exact())


def _name(kind: str, row: dict[str, Any], limit: str) -> str:
    return f"{kind} p={row['p']} m={row['m']} {limit}"


def _small_times(note: str) -> list[int]:
    """From "T_F 29.718, T_B 29.444, T_W 19.927, T_comm 0.527; ..."."""
    return [_us(Decimal(part.split()[1])) for part in note.split(";")[0].split(",")]


def _pipeline(row: dict[str, Any], limit: str, times: Sequence[int]) -> Pipeline:
    """`limit`, like 2p, counts microbatches in flight."""
    stages = int(row["p"])
    forward, backward, weight, hop = times
    cost = Cost(forward, backward, weight, HELD, LEFT, hop)
    most = HELD * int(limit.removesuffix("p")) * stages
    return Pipeline.alike([cost] * stages, stages, int(row["m"]), most)


def solve(case: Case) -> Row:
    """Our order's cost, checked, and the bound."""
    pipeline = case.pipeline
    places = tuple((stage,) for stage in range(pipeline.shards))
    begin = time.process_time()
    order = searched(pipeline, places, BUDGET)
    seconds = time.process_time() - begin
    check(pipeline, order)
    ours, bound = max(spans(pipeline, order)), max(bounds(pipeline, places).values())
    gap = (ours - bound) / ours
    return Row(case.name, ours, case.published, case.best, bound, gap, round(seconds, 2))


def line(row: Row) -> str:
    """A row for people."""
    better = f"{(row.published - row.ours) / row.published:8.3%}"
    return (
        f"{row.case:24} ours {row.ours:>9,}  published {row.published:>9,}  best known "
        f"{row.best or row.published:>9,}  bound {row.bound:>9,}  gap {row.gap:7.3%}  "
        f"better by {better}  {row.seconds:5.2f} s{'' if row.enough else '  FALLS SHORT'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """All cases of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="one list of rows")
    options = parser.parse_args(arguments)
    try:
        asked = list(cases(json.loads(options.file.read_text(), parse_float=Decimal)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        parser.error(f"{options.file} is no such file of settings: {error!r}")
    rows = []
    for case in asked:
        rows.append(solve(case))
        if not options.json:
            print(line(rows[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(row) | {"enough": row.enough} for row in rows], indent=1))
    else:
        good = sum(row.enough for row in rows)
        optimal = sum(row.ours == row.bound for row in rows)
        print(f"{good} of {len(rows)} as good as published or better, {optimal} proven optimal")
    return int(not all(row.enough for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
