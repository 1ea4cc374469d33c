"""The random numbers that the microbatches of a task with lengths draw, by their tokens."""

from collections.abc import Callable
from functools import lru_cache

from executor.numerics import Row
from executor.workload.steps import Steps
from plans.schema import Task as PlanTask

_KEPT = 16  # steps


def draws_of(planned: PlanTask, steps: Steps) -> Callable[[int], list[Row | None]]:
    """By step, the draws of each microbatch in each shard; None for one without samples, which no
    loop has."""
    assert planned.lengths is not None
    each = planned.lengths.token_draws or [0] * len(planned.shards)
    shards = [*zip(planned.shards, each, strict=True)]

    @lru_cache(_KEPT)
    def rows(step: int) -> list[Row | None]:
        return [
            [
                one.rng_draws and one.rng_draws - less * (planned.microbatch - tokens)
                for one, less in shards
            ]
            if tokens
            else None
            for tokens in steps.sizes(step)
        ]

    return rows
