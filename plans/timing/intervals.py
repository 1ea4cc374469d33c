"""Intervals of time or bytes: unions, and copies that no compute covers."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from plans.ops import Lane, parse_stream

Interval = tuple[int, int]
S = TypeVar("S", bound=tuple[int, int, *tuple[object, ...]])


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint ascending intervals that cover the same points."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlaps(spans: Iterable[S]) -> Iterator[tuple[S, S]]:
    """Each pair of these spans, of which a start and an end come first, that have something in
    common; the one that begins later is the second."""
    active: list[S] = []
    for span in sorted(spans, key=lambda span: span[:2]):
        active = [other for other in active if other[1] > span[0]]
        for other in active:
            yield other, span
        active.append(span)


def uncovered(intervals: Iterable[Interval], cover: Iterable[Interval]) -> int:
    """Length of the part of `intervals` that `cover` does not cover."""
    wanted, blockers = union(intervals), union(cover)
    both = union([*wanted, *blockers])
    return sum(b - a for a, b in both) - sum(b - a for a, b in blockers)


def exposed_copy_us(ops: Iterable[tuple[str, int, int]]) -> dict[int, int]:
    """Per device, how long some copy ran while compute did not: `ops` are (stream, start, end)."""
    copies: dict[int, list[Interval]] = {}
    compute: dict[int, list[Interval]] = {}
    for stream, start, end in ops:
        device, lane = parse_stream(stream)
        if lane is Lane.COMPUTE:
            compute.setdefault(device, []).append((start, end))
        elif lane is not Lane.HOST:
            copies.setdefault(device, []).append((start, end))
    return {device: uncovered(spans, compute.get(device, [])) for device, spans in copies.items()}
