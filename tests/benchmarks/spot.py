"""What a plan book would train on machines that come and go, on traces that others have published.

    python -m tests.benchmarks.spot FILE [--start 2s,5s,10s] [--kept 1] [--notice]

FILE has the throughput by number of nodes of some models and several traces (as of Oobleck's
simulator), or the steps of one model by layout and one trace (as of Parcae's). Each number of nodes
has a plan that is as fast as measured there, and its states are kept every so many steps
(--kept 1/4: as often as that costs what sums that survive in three of four replicas would). A node
that goes takes the work since then with it, without --notice; every change takes a start, so that
nodes that come are used where that pays until the trace ends. Printed is the share that is trained
of what changes that cost nothing would let it train.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from planner.surviving import Count, Pace, counted, survive
from profiles.console import columns, duration, listed
from profiles.units import show_us

Case = tuple[str, Mapping[int, float], Sequence[Count]]
"""A name, µs of a step by number of nodes, and the numbers of nodes there are."""


def cases(content: Mapping[str, Any]) -> Iterator[Case]:
    """Those of a file."""
    if "step_ms" in content:
        steps: dict[int, float] = {}
        for replicas, depth, ms in content["step_ms"]:
            steps[replicas * depth] = min(1000 * ms, steps.get(replicas * depth, 1000 * ms))
        yield "steps as measured", steps, nodes(content["events"])
        return
    for trace, events in content["traces_ms"].items():
        for system, models in content["throughput"].items():
            for model, table in models.items():
                samples = content["samples_per_step"][model]
                steps = {int(n): 1e6 * samples / rate for n, rate in table.items() if rate}
                yield f"{trace} {model} ({system})", steps, nodes(events)


def nodes(events: Sequence[tuple[int, str, str]]) -> list[Count]:
    return counted((1000 * ms, what, name) for ms, what, name in events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    starts = (2_000_000, 5_000_000, 10_000_000)
    parser.add_argument("--start", type=listed(duration), default=starts)
    parser.add_argument("--kept", type=Fraction, default=1, help="steps")
    parser.add_argument("--notice", action="store_true", help="no step is lost with a node")
    given = parser.parse_args()
    rows = [("case", "time", "losses", *(f"start {show_us(us)}" for us in given.start))]
    for name, steps, counts in cases(json.loads(given.file.read_bytes())):
        end_us = counts[-1][0]
        paces = [Pace(n, 1 / us, max(1, round(float(given.kept) * us))) for n, us in steps.items()]
        training = survive(paces, counts, end_us, 0).free
        found = [
            survive(paces, counts, end_us, start, whole=training, notice=given.notice)
            for start in given.start
        ]
        shares = (f"{outcome.share:.2%}" for outcome in found)
        rows.append((name, show_us(end_us), str(found[0].losses), *shares))
    print("\n".join(columns(rows, numbers=True)))


if __name__ == "__main__":
    main()
