"""The sequences that a pipeline has in a step, packed into microbatches.

A microbatch takes square Q + linear T + fixed on every stage, with Q the sum of the squares of its
sequences' tokens and T the sum of their tokens: packed sequences attend to themselves only. With
`pad` each sequence counts as the longest one of its microbatch. A pipeline takes what all its
microbatches take, and the longest one once more for every stage but one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

from planner.packing.bins import cut, first_fit, least_loaded, next_fit
from planner.packing.pipes import Curve

How = Literal["pad", "fixed", "ffd", "balanced", "alone"]
_CLOSE = 1.001  # times what cannot be beaten: no other number of microbatches is tried


@dataclass(frozen=True)
class Packing:
    """groups: the microbatch of each sequence; tokens, squares, us: of every microbatch, padding
    counted. Microbatches are numbered from the one with most tokens on."""

    groups: tuple[int, ...]
    tokens: tuple[int, ...]
    squares: tuple[int, ...]
    us: tuple[int, ...]

    def total_us(self, depth: int) -> int:
        """The time of a pipeline of so many stages."""
        return sum(self.us) + (depth - 1) * max(self.us)


def packed(lengths: Sequence[int], how: How, most: int, curve: Curve, depth: int = 1) -> Packing:
    """Sequences packed into microbatches of at most `most` tokens.

    pad: sequences of similar lengths, such that all takes least. fixed: in the order given, as many
    as there is room for. ffd: first-fit-decreasing. balanced: as many microbatches as make the
    pipeline of `depth` stages shortest, about equally long. alone: one in each.
    Microbatches that no sequence is left for run one token of padding.
    """
    if lengths and max(lengths) > most:
        raise ValueError(
            f"a sequence has {max(lengths)} tokens, a microbatch of this pipeline at most {most}"
        )
    if how == "fixed":
        return _summed(lengths, next_fit(lengths, most), False, curve)
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    sizes = [lengths[at] for at in order]
    bins = _BINS[how](sizes, most, curve, depth)
    groups = [0] * len(sizes)
    for at, group in zip(order, bins, strict=True):
        groups[at] = group
    return _summed(lengths, groups, how == "pad", curve)


def _summed(lengths: Sequence[int], bins: Sequence[int], padded: bool, curve: Curve) -> Packing:
    """The packing with these bins, which may have any numbers from 0 on."""
    count = max(bins, default=0) + 1
    tokens, squares = [0] * count, [0] * count
    if padded:
        rows, longest = Counter(bins), [0] * count
        for size, group in zip(lengths, bins, strict=True):
            if size > longest[group]:
                longest[group] = size
        tokens = [rows[group] * size for group, size in enumerate(longest)]
        squares = [many * size for many, size in zip(tokens, longest, strict=True)]
    else:
        for size, group in zip(lengths, bins, strict=True):
            tokens[group] += size
            squares[group] += size * size
    order = sorted(range(count), key=lambda group: (-tokens[group], -squares[group]))
    number = [0] * count
    for rank, group in enumerate(order):
        number[group] = rank
    tokens = [tokens[group] or 1 for group in order]
    squares = [squares[group] or 1 for group in order]
    return Packing(
        tuple([number[group] for group in bins]),
        tuple(tokens),
        tuple(squares),
        tuple([us(curve, *sums) for sums in zip(tokens, squares, strict=True)]),
    )


def us(curve: Curve, tokens: int, squares: int) -> int:
    """The time of a microbatch on a stage, rounded up."""
    return ceil(curve.square * squares + curve.linear * tokens + curve.fixed)


def _weights(sizes: Sequence[int], curve: Curve) -> list[float]:
    square, linear = curve.square, curve.linear
    return [(square * size + linear) * size for size in sizes]


def _padded(sizes: list[int], most: int, curve: Curve, depth: int) -> list[int]:
    """The best cut; several stages wait for the longest microbatch, so smaller ones are tried, half
    as many tokens each time."""
    if not sizes:
        return []
    weights, limits = _weights(sizes, curve), [most]
    while depth > 1 and limits[-1] // 2 >= sizes[0]:
        limits.append(limits[-1] // 2)
    found = [cut(sizes, weights, limit, curve.fixed) for limit in limits]
    return min(found, key=lambda bins: _summed(sizes, bins, True, curve).total_us(depth))


def _first_fit(sizes: list[int], most: int, curve: Curve, depth: int) -> list[int]:
    return first_fit(sizes, most)


def _balanced(sizes: list[int], most: int, curve: Curve, depth: int) -> list[int]:
    """Longest first, into the number of microbatches that would be best if all were equally long;
    where they are not, into more or fewer as long as that is better. First-fit where it is better
    still: it may find room in fewer."""
    if not sizes:
        return []
    weights = _weights(sizes, curve)
    low = min(len(sizes), -(-sum(sizes) // most))
    ideal, begin = _ideal(sum(weights), weights[0], curve.fixed, depth, low)
    begin = min(begin, len(sizes))

    def tries(bins: Iterable[int]) -> Iterator[tuple[float, list[int]]]:
        for number in bins:
            found = least_loaded(sizes, weights, most, number)
            if found is not None:
                yield _took(weights, found, curve.fixed, depth), found

    more = tries(range(begin, len(sizes) + 1))
    best = next(more)
    if best[0] <= _CLOSE * ideal:
        return best[1]
    first = first_fit(sizes, most)
    best = min(best, (_took(weights, first, curve.fixed, depth), first))
    for others in (more, tries(range(begin - 1, low - 1, -1))):
        for other in others:
            if other >= best:
                break
            best = other
    return best[1]


def _took(weights: Sequence[float], bins: Sequence[int], fixed: float, depth: int) -> float:
    """The time of a pipeline with these bins."""
    loads = [fixed] * (max(bins) + 1)
    for weight, number in zip(weights, bins, strict=True):
        loads[number] += weight
    return sum(loads) + (depth - 1) * max(loads)


def _ideal(work: float, longest: float, fixed: float, depth: int, low: int) -> tuple[float, int]:
    """The least time of all numbers of bins from `low` on, in which work could be divided at will
    except for the longest sequence, and that number."""
    most = ceil(work / longest) if longest else 1
    best = int(sqrt((depth - 1) * work / fixed)) if fixed else most
    return min(
        (work + bins * fixed + (depth - 1) * (max(work / bins, longest) + fixed), bins)
        for bins in {max(low, 1, min(most, bins)) for bins in (best, best + 1, most - 1, most)}
    )


def _alone(sizes: list[int], most: int, curve: Curve, depth: int) -> list[int]:
    return list(range(len(sizes)))


_BINS: dict[How, Callable[[list[int], int, Curve, int], list[int]]] = {
    "pad": _padded,
    "ffd": _first_fit,
    "balanced": _balanced,
    "alone": _alone,
}
