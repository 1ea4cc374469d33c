"""Cuts of published layer graphs into stages: our bottleneck against the published optimum.

    python -m tests.benchmarks.cuts FILE [--json]

FILE has `models`, profiles of PipeDream's by name:

    nodes        id, layer, forward and backward in us, bytes of its outputs (or a list of them),
                 bytes of parameters; nodes named "Input..." cost nothing
    edges        from id, to id
    partitions   `gpus` and the published `time_per_stage_s`

or `instances`, graphs of dnn-partitioning's by name:

    nodes        id, ms on an accelerator, ms on a CPU, bytes, ms to send its output, 1 if it is
                 backward, color class (nodes of one stay together)
    edges        from id, to id
    accelerators, cpus, accelerator_memory_bytes, and the published optimum_max_load_ms

What a stage costs is defined in `tests/support/layer_graphs.py`. Both ask for stages along
downsets. Ours is counted again from its stages, straight from that definition. Bound: the work
shared out evenly, nothing sent. Exit code 1 if a row is longer.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.support.downsets import downsets, narrowest
from tests.support.layer_graphs import Graph, graphs
from tests.support.published import Judged, compared

ROUNDED = 1e-6  # published figures have six digits behind the point or more


@dataclass(frozen=True)
class Row(Judged):
    """What came out, in ms."""

    name: str
    ours: float
    theirs: float
    bound: float
    gap: float
    stages: int
    downsets: int
    cpu_s: float

    @property
    def short(self) -> bool:
        return self.ours > self.theirs * (1 + ROUNDED)


def solve(case: Graph) -> Row:
    """Cut it, and look at the stages again."""
    begun = time.process_time()
    rows = downsets(case.graph)
    least = [case.least(node) for node in case.graph]
    found, stages = narrowest(rows, least, case.rule(rows), case.steps())
    spent = time.process_time() - begun
    nodes = np.array(case.graph)
    groups = [(set(nodes[rows[s.outer] & ~rows[s.inner]].tolist()), s.place) for s in stages]
    counted = case.longest(groups)
    assert abs(counted - found) <= 1e-9 * found, (counted, found)
    ours, bound = counted / case.per_ms, case.even / case.per_ms
    gap, count = 1 - bound / ours, len(stages)
    return Row(case.name, ours, case.published_ms, bound, gap, count, len(rows), spent)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """For people."""
    yield "| graph | ours ms | theirs ms | bound ms | gap | stages | downsets | cpu s |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        yield (
            f"| {row.name} | {row.ours:.6f} | {row.theirs:.6f} | {row.bound:.3f} | "
            f"{row.gap:.1%} | {row.stages} | {row.downsets:,} | {row.cpu_s:.1f} |"
            + " longer!"
            * row.short
        )


def main() -> int:
    """Cut every graph and compare."""
    return compared(
        __doc__, "models with partitions, nor instances", lambda d: map(solve, graphs(d)), table
    )


if __name__ == "__main__":
    sys.exit(main())
