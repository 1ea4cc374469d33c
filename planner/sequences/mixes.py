"""The mix of pipelines with which steps are shortest, where there are too many mixes to try all.

Mixes of one type are where the search begins. Then pipelines of one type give their devices to
those of another, as long as some steps, laid out, are shorter in the mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.dispatch import PipelineType, Pool
from planner.packing import Array, How, laid_out

Counts = tuple[int, ...]
"""The pipelines of every type."""


def best_mix(
    types: Sequence[PipelineType], devices: int, steps: Sequence[Array], how: How
) -> Counts | None:
    """The mix on so many devices with which these steps are shortest in the mean, as far as
    exchanges of pipelines find it; None where no type holds the longest sequence."""
    longest = max(int(own.max()) for own in steps)
    known = dict[Counts, int]()

    def us(counts: Counts) -> int:
        if counts not in known:
            pairs = zip(types, counts, strict=True)
            pool = Pool(tuple(replace(one, count=count) for one, count in pairs if count))
            known[counts] = sum(max(laid_out(pool, own, how).us) for own in steps) // len(steps)
        return known[counts]

    def able(mixes: Iterator[Counts]) -> list[Counts]:
        holds = [one.longest >= longest for one in types]
        return [own for own in mixes if any(n and fits for n, fits in zip(own, holds, strict=True))]

    near = able(
        tuple(devices // one.depth * (at == number) for at in range(len(types)))
        for number, one in enumerate(types)
    )
    best = min(near, key=us, default=None)
    while best:
        better = min(able(_exchanges(types, devices, best)), key=us, default=best)
        if us(better) >= us(best):
            break
        best = better
    return best


def _exchanges(types: Sequence[PipelineType], devices: int, counts: Counts) -> Iterator[Counts]:
    """The mixes in which the fewest pipelines of one type make room for those of another."""
    idle = devices - sum(n * one.depth for n, one in zip(counts, types, strict=True))
    for to, one in enumerate(types):
        for source, other in enumerate(types):
            gone = 0 if source == to else max(1, -(-(one.depth - idle) // other.depth))
            more = (idle + gone * other.depth) // one.depth
            if gone <= counts[source] and more:
                new = list(counts)
                new[source] -= gone
                new[to] += more
                yield tuple(new)
