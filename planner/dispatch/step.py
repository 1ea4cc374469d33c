"""The dispatch of one step, and how far it is from the best possible."""

from dataclasses import dataclass

from planner.dispatch.bounds import bound_us
from planner.dispatch.filling import filled
from planner.dispatch.longest_first import longest_first
from planner.dispatch.moves import improved, spread
from planner.dispatch.pipes import Array, Pool

_NEAR = 1.05  # of the best dispatch, in which another one may become better by moves


@dataclass(frozen=True)
class Dispatch:
    """places: the pipeline of every sequence; us: when the last pipeline is done; bound_us: no
    dispatch is done sooner."""

    places: Array
    us: int
    bound_us: int


def dispatched(pool: Pool, lengths: Array) -> Dispatch:
    """One step's sequences to pipelines: longest first, or filled one by one, made better by moves,
    whichever is better then; no pipeline stays empty where that takes no longer."""
    times = pool.times(lengths)

    def us(places: Array) -> int:
        return int(pool.finishes(times, places).max(initial=0))

    found = [longest_first(pool, lengths)]
    if len(lengths) and (filling := filled(pool, lengths, 1, us(found[0]) - 1)):
        found.append(filling.places)
    bound = bound_us(pool, lengths, us(found[-1]))
    near = [places for places in found if us(places) <= _NEAR * us(found[-1])]
    best = min((improved(pool, lengths, places, bound) for places in near), key=us)
    best = spread(pool, lengths, best)
    return Dispatch(best, us(best), bound)
