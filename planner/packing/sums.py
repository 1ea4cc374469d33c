"""The steps of a kind added up: what its microbatches hold at most, and in the mean."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

TOKENS = 256
"""The most tokens of a microbatch of a kind are a multiple of this."""

_SOME = 31  # steps of a kind that are kept, at most

By = tuple[tuple[int, ...], ...]
"""By pipeline, of each of its microbatches."""


@dataclass(frozen=True)
class StepKind:
    """Rounds of a kind. most: the most tokens of any step; tokens and squares: the mean of its
    steps, from which its times follow. steps: so many are of this kind; some: tokens and squares of
    some of them (steps x 2 x microbatches)."""

    most: By
    tokens: By
    squares: By
    steps: int
    some: Array = field(compare=False)

    @classmethod
    def of(cls, held: Iterable[Array], times: Array, counts: Array) -> "StepKind":
        """The kind of steps with these loads (2 x microbatches), that come so many times. counts:
        the microbatches of every pipeline."""
        steps, many, ends = int(times.sum()), int(counts.sum()), np.cumsum(counts)[:-1]
        most, sums, some = np.ones(many, np.int64), np.zeros((2, many), np.int64), list[Array]()
        every = max(1, -(-len(times) // _SOME))
        for number, (own, often) in enumerate(zip(held, times.tolist(), strict=True)):
            loads = np.maximum(own, 1)  # padding, if nothing else
            np.maximum(most, loads[0], out=most)
            sums += often * loads
            if number % every == 0:
                some.append(loads)

        def by_pipeline(values: Array) -> By:
            return tuple(tuple(own.tolist()) for own in np.split(values, ends))

        means = np.maximum(1, np.rint(sums / max(1, steps)))
        tokens, squares = map(by_pipeline, means.astype(np.int64))
        kept = np.array(some, np.int64).reshape(-1, 2, many)
        return cls(by_pipeline(-(-most // TOKENS) * TOKENS), tokens, squares, steps, kept)


def largest(kinds: list[StepKind]) -> By:
    """The most tokens of the microbatches of any of these kinds."""
    pipelines = zip(*(kind.most for kind in kinds), strict=True)
    return tuple(tuple(map(max, zip_longest(*own, fillvalue=0))) for own in pipelines)


def renumbered(groups: NDArray[np.uint16], counts: Array, kind: Array) -> Array:
    """Microbatches of a step by their numbers in its kind. counts, kind: how many each pipeline has
    in the step, and in the kind."""
    shift = np.cumsum(kind - counts) - (kind - counts)
    return np.asarray(groups + np.repeat(shift, counts)[groups], np.int64)


def loads(groups: Array, lengths: Array, count: int, *, padded: bool) -> Array:
    """The tokens of so many microbatches, and the sums of the squares of their samples (2 x
    microbatches). padded: every sample counts as the longest one of its microbatch."""
    if padded:
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, groups, lengths)
        tokens = np.bincount(groups, minlength=count) * longest
        return np.stack([tokens, tokens * longest])
    sums = [np.bincount(groups, own, count) for own in (lengths, lengths * lengths)]
    return np.stack(sums).astype(np.int64)
