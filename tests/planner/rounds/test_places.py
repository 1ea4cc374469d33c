"""Places of values that live longer if there is room: looked at step by step."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.rounds.compiled import Numbers
from planner.rounds.places import placed

STEPS = 6


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """Of some values the first step that is wished, the first and last of the least life, the last
    that is wished, and bytes; none is wished all round."""
    found = []
    for _ in range(draw(st.integers(1, 7))):
        early, own, late = (
            draw(st.integers(0, 2)),
            draw(st.integers(0, 1)),
            draw(st.integers(0, 1)),
        )
        first = draw(st.integers(0, STEPS - 1))
        found.append(
            (first - early, first, first + own, first + own + late, draw(st.integers(1, 9)))
        )
    return found


@given(lives(), st.integers(1, 40), st.integers(1, 4))
def test_lives_are_as_wished_or_cut_and_never_share_bytes(
    of: list[tuple[int, int, int, int, int]], room: int, tries: int
) -> None:
    begin, first, last, end, size = np.array(of, np.int64).T
    found = placed((first, last), (begin, end), size, STEPS, room, tries)
    if found is None:
        assert sum(size) > room
        return
    firsts, lasts, offsets = found
    assert (offsets >= 0).all()
    assert (offsets + size <= room).all()
    assert (begin <= firsts).all()
    assert (firsts <= first).all()
    assert (last <= lasts).all()
    assert (lasts <= end).all()
    for i, j in combinations(range(len(of)), 2):
        if offsets[i] < offsets[j] + size[j] and offsets[j] < offsets[i] + size[i]:
            assert not _steps(firsts[i], lasts[i]) & _steps(firsts[j], lasts[j])


def _steps(first: int, last: int) -> set[int]:
    return {step % STEPS for step in range(first, last + 1)}


def test_a_value_lies_where_it_can_live_as_long_as_it_wishes() -> None:
    """The lowest bytes that are free throughout its least life were free only then."""
    least, wished = _ends((0, 1), (4, 5), (3, 3)), _ends((0, 2), (4, 5), (1, 3))
    found = placed(least, wished, np.array([4, 4, 4]), STEPS, 8, 1)
    assert found is not None
    assert [column.tolist() for column in found] == [[0, 4, 1], [2, 5, 3], [0, 0, 4]]


def test_what_had_no_place_is_placed_before_others() -> None:
    """Larger ones first leave the last one no bytes that are free all through its life."""
    least = _ends((3, 3), (4, 6), (0, 1), (3, 5))
    size = np.array([6, 3, 4, 5])
    assert placed(least, least, size, STEPS, 11, 1) is None
    found = placed(least, least, size, STEPS, 11, 2)
    assert found is not None
    assert found[2].tolist() == [0, 0, 3, 6]


def _ends(*lives: tuple[int, int]) -> tuple[Numbers, Numbers]:
    first, last = np.array(lives, np.int64).T
    return first, last
