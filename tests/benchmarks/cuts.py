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

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tests.support.downsets import downsets, narrowest
from tests.support.layer_graphs import Graph, graphs

ROUNDED = 1e-6  # published figures have six digits behind the point or more


@dataclass(frozen=True)
class Row:
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


def main() -> int:
    """Cut every graph and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    args = parser.parse_args()
    found = list(graphs(json.loads(args.file.read_text())))
    if not found:
        parser.error(f"{args.file} has neither models nor instances; give a file that has")
    rows = [solve(case) for case in found]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print("| graph | ours ms | theirs ms | bound ms | gap | stages | downsets | cpu s |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for row in rows:
            print(
                f"| {row.name} | {row.ours:.6f} | {row.theirs:.6f} | {row.bound:.3f} | "
                f"{row.gap:.1%} | {row.stages} | {row.downsets:,} | {row.cpu_s:.1f} |"
                + " longer!"
                * row.short
            )
    return int(any(row.short for row in rows))


if __name__ == "__main__":
    sys.exit(main())
