"""The steps of a kind added up: what its microbatches hold at most, and in the mean."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

TOKENS = 256
"""The most tokens of a microbatch of a kind are a multiple of this."""

_SOME = 16  # steps of a kind that are kept, at least, if there are so many


@dataclass(frozen=True)
class Kind:
    """Rounds of a kind. By pipeline, of each of its microbatches: `most`, the most tokens of any
    step; `tokens` and `squares`, the mean of its steps, from which its times follow. steps: so many
    are of this kind; some: tokens and squares of some of them (steps x 2 x microbatches)."""

    most: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    squares: tuple[tuple[int, ...], ...]
    steps: int
    some: Array = field(compare=False)


class Sums:
    """Sums over the steps of a kind, for each of its microbatches, which all pipelines have so many
    of: `counts`. padded: every sequence counts as the longest one of its microbatch."""

    def __init__(self, counts: Array, *, padded: bool) -> None:
        self._counts, self._padded = counts, padded
        self._firsts = np.cumsum(counts) - counts
        self._steps, size = 0, int(counts.sum())
        self._most, self._tokens, self._squares = (np.zeros(size, np.int64) for _ in range(3))
        self._added, self._stride, self._some = 0, 1, list[Array]()

    def add(self, groups: NDArray[np.uint16], counts: Array, lengths: Array, times: int) -> Array:
        """A step that comes so many times, by its own microbatches: those of each sample, and how
        many each pipeline has. The microbatches of its samples by their numbers in this kind."""
        moved = np.repeat(self._firsts - (np.cumsum(counts) - counts), counts)
        own = (moved + np.arange(len(moved)))[groups]
        size = len(self._most)
        if self._padded:
            longest = np.zeros(size, np.int64)
            np.maximum.at(longest, own, lengths)
            tokens = np.bincount(own, minlength=size) * longest
            squares = tokens * longest
        else:
            tokens = np.bincount(own, lengths, size).astype(np.int64)
            squares = np.bincount(own, lengths * lengths, size).astype(np.int64)
        self._most = np.maximum(self._most, tokens)
        tokens, squares = np.maximum(tokens, 1), np.maximum(squares, 1)  # padding, if nothing else
        self._tokens += times * tokens
        self._squares += times * squares
        self._steps += times
        self._keep(tokens, squares)
        return np.asarray(own, np.int64)

    def _keep(self, tokens: Array, squares: Array) -> None:
        """One step of `stride`, of which there are never many."""
        if self._added % self._stride == 0:
            self._some.append(np.stack([tokens, squares]))
        self._added += 1
        if len(self._some) == 2 * _SOME:
            del self._some[1::2]
            self._stride *= 2

    def kind(self, others: Sequence["Sums"] = ()) -> Kind:
        """The kind of these steps, whose microbatches are at least as large as those of others."""
        most = [own.tolist() for own in self._by_pipeline(np.maximum(self._most, 1))]
        for other in others:
            for mine, theirs in zip(most, other._by_pipeline(other._most), strict=True):
                mine[: len(theirs)] = np.maximum(mine[: len(theirs)], theirs).tolist()
        return Kind(
            tuple(tuple(-(-tokens // TOKENS) * TOKENS for tokens in own) for own in most),
            self._means(self._tokens),
            self._means(self._squares),
            self._steps,
            np.array(self._some, np.int64).reshape(-1, 2, len(self._most)),
        )

    def _means(self, sums: Array) -> tuple[tuple[int, ...], ...]:
        means = np.maximum(1, np.rint(sums / max(1, self._steps)).astype(np.int64))
        return tuple(tuple(own.tolist()) for own in self._by_pipeline(means))

    def _by_pipeline(self, values: Array) -> list[Array]:
        return np.split(values, self._firsts[1:])
