"""Unions of intervals, and copies that no compute covers."""

from collections.abc import Iterable
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from plans import timing

Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def _points(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {point for start, end in spans for point in range(start, end)}


@given(SPANS)
def test_union_covers_the_same_points_disjointly(spans: Spans) -> None:
    """Merged intervals ascend with gaps between them and hold exactly the points given."""
    merged = timing.union(spans)
    assert _points(merged) == _points(spans)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(SPANS)
def test_overlaps_are_pairs_with_points_in_common(spans: Spans) -> None:
    """Each pair of spans once, the one that begins later second."""
    found = [
        (one[2], other[2]) for one, other in timing.overlaps((*s, n) for n, s in enumerate(spans))
    ]
    common = {
        frozenset(pair)
        for pair in combinations(range(len(spans)), 2)
        if _points([spans[pair[0]]]) & _points([spans[pair[1]]])
    }
    assert {*map(frozenset, found)} >= common
    assert all(spans[one] <= spans[other] for one, other in found)
    assert len(found) == len({*map(frozenset, found)})


@given(SPANS, SPANS)
def test_uncovered_counts_points_outside_the_cover(spans: Spans, cover: Spans) -> None:
    """The uncovered length is the number of points in the intervals and not in the cover."""
    assert timing.uncovered(spans, cover) == len(_points(spans) - _points(cover))


def test_copies_are_exposed_where_their_own_device_does_not_compute() -> None:
    """Overlapping copies count once, other devices and the host hide nothing."""
    ops = [
        ("0.h2d", 0, 10),
        ("0.d2h", 5, 20),
        ("0.compute", 8, 12),
        ("1.compute", 0, 20),
        ("host.0", 0, 20),
    ]
    assert timing.exposed_copy_us(ops) == {0: 16}
