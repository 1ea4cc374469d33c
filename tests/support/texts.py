"""Made-up tasks with lengths, whose times and bytes are those of formulas."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from support.synthetic import time_us

import plans
from planner import Problem, build
from plans.schema import Plan
from profiles import lengths as files
from profiles.codec import align, sha256
from profiles.schema import BatchCost, Layer, LayerCost, Task, Workload

SIZES = (256, 512, 1024, 4096)
LENGTHS = [17, 300, 256, 1000, 4096, 30, 511, 77]

Formula = tuple[int, int, int]  # square_fs, linear_ps, fixed_ns


def us_of(formula: Formula, tokens: int, squares: int) -> float:
    """The time of a formula, in µs."""
    square, linear, fixed = formula
    return square * squares / 1e9 + linear * tokens / 1e6 + fixed / 1e3


def cost(size: int, formula: Formula, *, fixed_bytes: int = 0) -> LayerCost:
    """A layer's cost at so many tokens: fp32 boundaries of 64 values a token."""
    boundary = align(4 * 64 * size)
    forward = us_of(formula, size, size * size)
    return LayerCost(
        microbatch=size,
        in_bytes=boundary,
        out_bytes=boundary,
        saved_bytes=6 * boundary + fixed_bytes,
        forward_peak_bytes=2 * boundary,
        backward_peak_bytes=9 * boundary + fixed_bytes,
        rng_draws=0,
        forward=time_us(round(forward)),
        recompute_backward=time_us(round(3 * forward)),
        backward=time_us(round(2 * forward)),
        offload_bytes=5 * boundary + align(fixed_bytes),
        pack_backward=time_us(round(3.5 * forward)),
        unpack_backward=time_us(round(2.5 * forward)),
    )


def text_task(
    name: str = "text",
    *,
    layers: int = 4,
    formula: Formula = (20_000, 3_000_000, 50_000),
    sizes: tuple[int, ...] = SIZES,
    lengths: ArrayLike = LENGTHS,
    batch: int = 4,
    steps: int = 10,
    param_bytes: int = 1 << 20,
    fixed_bytes: int = 0,
) -> Task:
    """A task of equal layers that was measured at these sizes."""
    costs = tuple(cost(size, formula, fixed_bytes=fixed_bytes) for size in sizes)
    layer = Layer(
        name="Block",
        param_bytes=align(param_bytes),
        grad_bytes=align(param_bytes),
        state_bytes=2 * align(param_bytes),
        buffer_bytes=0,
        update_peak_bytes=0,
        update_device=time_us(100),
        update_host=time_us(200),
        costs=costs,
    )
    return Task(
        name=name,
        workload=Workload("text.py:tasks", sha256(b"text")),
        steps=steps,
        batch=batch,
        optimizer="AdamW",
        batches=tuple(BatchCost(size, 4 * 8 * size) for size in sizes),
        lengths=files.describe(np.asarray(lengths)),
        layers=(layer,) * layers,
    )


def built(problem: Problem, folder: Path, **options: Any) -> Plan:
    """Its plan, saved as plan.json, proven with its tables and the lengths of all samples."""
    output = folder / "plan.json"
    plan = build(problem, profile_sha256="0" * 64, output=output, **options)
    plans.save(output, plan)
    plans.prove_tables(plan, output, problem.lengths)
    return plan
