"""The dispatch of one step, and how far it is from the best possible."""

from dataclasses import dataclass

import numpy as np

from planner.dispatch.bounds import bound_us
from planner.dispatch.longest_first import longest_first
from planner.dispatch.moves import improved
from planner.dispatch.pipes import Array, Pool


@dataclass(frozen=True)
class Dispatch:
    """places: the pipeline of every sequence; us: when the last pipeline is done; bound_us: no
    dispatch is done sooner."""

    places: Array
    us: int
    bound_us: int


def dispatched(pool: Pool, lengths: Array) -> Dispatch:
    """One step's sequences to pipelines: longest first, then made better by moves."""
    bound = bound_us(pool, lengths)
    places = improved(pool, lengths, longest_first(pool, lengths), bound)
    us = int(pool.finishes(pool.times(lengths), places).max(initial=0))
    return Dispatch(np.asarray(places), us, bound)
