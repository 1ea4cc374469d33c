"""The costs of a microbatch of any number of tokens, from the curves and bytes of a profile."""

from functools import lru_cache

from msgspec.structs import replace

from profiles import curves
from profiles.codec import ALIGNMENT, align
from profiles.schema import BatchCost, LayerCost, Task, Time


def at(task: Task, tokens: int, squares: int | None = None, used: int | None = None) -> Task:
    """A task with lengths as if it was measured at this size alone: microbatches of so many tokens,
    a multiple of 256.

    squares: the sum of the squares of their sequences' lengths, which attention goes by; None: all
    is one sequence. used: tokens that they have, which times go by; None: all of them. Bytes of
    boundaries are those of the longest measured length that is a multiple of 256, scaled. All
    others, of which some are the same at every length, are taken from above, by lines between
    measured lengths."""
    if tokens < 1 or tokens % ALIGNMENT:
        raise ValueError(f"{tokens} tokens are no multiple of {ALIGNMENT}")
    total = tokens * tokens if squares is None else squares
    place = max(n for n, b in enumerate(task.batches) if b.microbatch % ALIGNMENT == 0)
    known = task.batches[place]
    batch = BatchCost(tokens, _scaled(known.batch_bytes, known.microbatch, tokens))
    layers = tuple(
        replace(layer, costs=(_cost(layer.costs, place, tokens, used or tokens, total),))
        for layer in task.layers
    )
    return replace(task, batches=(batch,), layers=layers)


@lru_cache(maxsize=1 << 12)
def _cost(
    costs: tuple[LayerCost, ...], place: int, tokens: int, used: int, squares: int
) -> LayerCost:
    """The cost of a layer, whose boundaries are scaled from those of costs[place]."""
    known = costs[place]
    times: dict[str, Time | None] = dict.fromkeys(curves.OPS)
    for curve in curves.curves_of(costs):
        us = curves.us(curve, used, squares)
        times[curve.op] = Time(us, us, us, 1)
    sizes: dict[str, int | None] = {}
    for name in curves.IN_PROPORTION:
        sizes[name] = _scaled(getattr(known, name), known.microbatch, tokens)
    for name in curves.NO_FASTER:
        points = [(cost.microbatch, getattr(cost, name)) for cost in costs]
        sizes[name] = None if None in dict(points).values() else _above(points, tokens)
    draws = curves.draws_of(costs)
    if sizes["offload_bytes"] is not None:  # of a buffer
        sizes["offload_bytes"] = align(sizes["offload_bytes"])
    drawn = None if draws is None else draws[0] + draws[1] * tokens
    return replace(known, microbatch=tokens, rng_draws=drawn, **sizes, **times)


def _scaled(size: int, measured: int, tokens: int) -> int:
    return align(-(-size * tokens // measured))


def _above(points: list[tuple[int, int]], tokens: int) -> int:
    """Bytes that grow with tokens, or not at all, from above: on the line between the measured
    lengths around them, in proportion beyond the last one."""
    last, most = points[-1]
    if tokens > last:
        return -(-most * tokens // last)
    place = next(n for n, (length, _) in enumerate(points) if length >= tokens)
    right, high = points[place]
    left, low = points[place - 1] if place else (0, high)
    return high - (high - low) * (right - tokens) // (right - left)
