"""Kinds of rounds: a program of samples of every length has several shapes of a round.

    enter | 0 0 0 0 | 2 | 0 0 | 1 1 1 | leave        runs of rounds of one kind, barriers between

Kind 0 is the program's `round`, the others are its `kinds`. Rounds of a run overlap by the period
of their kind; a run begins when the one before it has ended.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, groupby

from msgspec.structs import replace

from plans.schema import Program, RoundKind, Segment

Runs = tuple[tuple[int, int], ...]
"""Pairs (kind, rounds) in turn."""


def kinds_of(program: Program) -> tuple[RoundKind, ...]:
    """All kinds of rounds of a program, its `round` first; without lengths they say no tokens."""
    first = RoundKind(program.tokens, program.period_us, program.round_us, program.round)
    return (first, *program.kinds)


def of_kind(program: Program, number: int) -> Program:
    """The program as if all its rounds were of one kind."""
    if not program.kinds:
        return program
    kind = kinds_of(program)[number]
    return replace(
        program,
        period_us=kind.period_us,
        round_us=kind.round_us,
        round=kind.ops,
        tokens=kind.tokens,
        kinds=(),
    )


def runs(segment: Segment) -> Runs:
    """The runs of rounds of one kind of a segment."""
    return segment.kinds or ((0, segment.rounds),)


def part(whole: Runs, first: int, rounds: int) -> Runs:
    """The runs of `rounds` rounds from round `first` on."""
    found: list[tuple[int, int]] = []
    begin = 0
    for kind, count in whole:
        low, high = max(begin, first), min(begin + count, first + rounds)
        if low < high:
            found.append((kind, high - low))
        begin += count
    return tuple(found)


def joined(parts: Iterable[tuple[int, int]]) -> Runs:
    """These runs with those of one kind in a row as one."""
    each = groupby(parts, key=lambda run: run[0])
    return tuple((kind, sum(rounds for _, rounds in own)) for kind, own in each)


class RoundKinds:
    """The kind of any round of a segment, found by bisection."""

    def __init__(self, segment: Segment) -> None:
        self._kinds = [kind for kind, _ in runs(segment)]
        self._ends = list(accumulate(rounds for _, rounds in runs(segment)))

    def __getitem__(self, number: int) -> int:
        return self._kinds[bisect_right(self._ends, number)]


def scaled(most_bytes: int, tokens: int, most: int) -> int:
    """Bytes of a value of so many tokens, of which `most` tokens have `most_bytes`."""
    return -(-most_bytes * tokens // most)
