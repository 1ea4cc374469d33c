"""Plans in all microbatches and layouts against a plain loop of whole batches.

    python -m tests.benchmarks.whole_batch [MODEL ...]

A row is a plan: what a step of it is, how far its losses are from those of whole batches, relative,
and whether losses and parameters have the bits of a plain loop with its microbatches and weights;
or why there is none. Exit code 1 where microbatches that nobody asked for, or that are said to
train what the whole batch does, are off by more than 1e-5, or bits differ.
"""

import sys
from itertools import product
from pathlib import Path

import torch

from executor import run
from planner import Infeasible
from planner.views import step_words
from profiles.errors import FormatError

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.plain import train
from support.quick import quickly
from support.whole_batch import CLOSE, SIZES, kinds, off, oracle, planned, profiled

LAYOUTS = ("1", "2x1", "1x2")


def main(names: list[str]) -> int:
    """Print the table; the exit code."""
    wrong = 0
    for name, kind in kinds().items():
        if names and name not in names:
            continue
        with quickly():
            made = profiled(kind)
        plain, task = train(kind.task, 1), kind.task.name
        for layout, microbatches in product(LAYOUTS, (None, *SIZES)):
            begin = f"{name:9} {layout:4} {microbatches or 'any':>4}"
            try:
                with quickly():
                    plan = planned(made, layout, microbatches)
            except (Infeasible, FormatError) as error:
                print(f"{begin}  refused: {error}")
                continue
            result, loop = run(plan, [kind.task]), oracle(plan, kind)
            far = off(result, plain, task)
            parameters = result.model(task).named_parameters()
            same = result.losses[task] == loop.losses and all(
                torch.equal(value, loop.params[key]) for key, value in parameters
            )
            good = same and (far < CLOSE or plan.tasks[0].parts.asked)
            wrong += not good
            told = "same bits" if same else "OTHER BITS"
            print(f"{begin}  {far:.1e}  {told}  {step_words(plan.tasks[0])}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
