"""Rounds of many microbatches: how long one takes to plan and to check, and in how much memory.

    python -m tests.benchmarks.long_rounds --stages 49 --microbatches 683
    python -m tests.benchmarks.long_rounds --stages 1 --microbatches 8000

Run from the root of the repository. A synthetic model of one layer for each stage, in order 1f1b.
Exits 1 where planning or checking takes more than 120 s of processor time, or more than 2 GB. With
one stage the round must be as long as its passes and its update.
"""

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from planner.builder import assemble, certified
from planner.inputs import Effort, Layout, Problem
from planner.lowering import Round
from planner.pipelines.sketch import Sketch
from planner.search import Candidate
from planner.shards import Links, TaskCosts
from plans import prove
from plans.prediction import Bound
from plans.schema import Segment
from plans.timing import duration_us
from profiles import console
from tests.support import synthetic

SECONDS, GB = 120, 2


def round_of(stages: int, microbatches: int) -> tuple[Problem, Round]:
    """The round, not yet laid out."""
    task = synthetic.task("long", layers=stages, steps=2, batch=microbatches, seed=1)
    profile = synthetic.profile(task, usable_bytes=1 << 40, bytes_per_s=10**10)
    problem = Problem.of(profile, devices=stages, device_bytes=None, host_bytes=None)
    links = Links.of(problem.only.device)
    layout, points = Layout((1,) * stages), tuple(range(stages + 1))
    sketch = Sketch(TaskCosts(task, 1), layout, 1, points, "1f1b", points, 1, links)
    return problem, Round(sketch.strategy, links)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--stages", type=console.whole(1, 1024), default=49)
    parser.add_argument("--microbatches", type=console.whole(1, 1 << 16), default=683)
    options = parser.parse_args(arguments)
    begun = time.process_time()
    problem, made = round_of(options.stages, options.microbatches)
    program, steps = made.program(), made.strategy.costs.task.steps
    devices = tuple(range(options.stages))
    segment = Segment(program.name, devices, steps, 0, duration_us(program, steps))
    candidate = Candidate(made.strategy, (program,))
    plan = assemble(problem, [candidate], [segment], "gantry", Effort(0, 0))
    plan = certified(problem, plan, [Bound("none", 0)])
    planned = time.process_time()
    prove(plan)
    checked = time.process_time() - planned
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{options.stages} stages x {options.microbatches} microbatches: {len(program.round)} ops, "
        f"a round every {program.period_us} us; planned in {planned - begun:.1f} s, checked in "
        f"{checked:.1f} s of processor time, {used:.2f} GB"
    )
    busy = sum(op.end_us - op.start_us for op in program.round if op.stream == "0.compute")
    exact = options.stages > 1 or program.period_us == busy
    return int(planned - begun > SECONDS or checked > SECONDS or used > GB or not exact)


if __name__ == "__main__":
    sys.exit(main())
