"""The exact search against an integer program over every instant, and against its own rules."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.time_indexed import CASES, ours, shortest, tiny

from planner.exact import shorter
from planner.policies import greedy
from planner.queues import Piece, Work, listed, makespan

works = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 30), st.integers(1, 40), st.integers(0, 50)),
    min_size=1,
    max_size=6,
).map(
    lambda drawn: [
        replace(Work.of(f"t{i}", rounds, fixed, period), start_us=start)
        for i, (rounds, fixed, period, start) in enumerate(drawn)
    ]
)


def whole(asked: list[Work], devices: int) -> list[Piece]:
    """Whole works as they come."""
    return listed(asked, range(len(asked)), (0,) * devices)


@given(works, st.integers(1, 3))
def test_pieces_are_sound_and_end_sooner(asked: list[Work], devices: int) -> None:
    """All rounds run, as long as they must, no device and no work twice at a time, none before
    its start."""
    given_pieces = whole(asked, devices)
    found = shorter(asked, (0,) * devices, given_pieces, 0)
    if found is None:
        return
    assert makespan(found) < makespan(given_pieces)
    for work in asked:
        mine = [piece for piece in found if piece.work == work.name]
        assert sum(piece.rounds for piece in mine) == work.rounds
        assert all(piece.end_us - piece.start_us == work.us(0, piece.rounds) for piece in mine)
        assert all(piece.start_us >= work.start_us for piece in mine)
    for left, right in ((a, b) for a in found for b in found if a is not b):
        if left.work == right.work or left.device == right.device:
            assert left.end_us <= right.start_us or right.end_us <= left.start_us
    assert {piece.device for piece in found} <= set(range(devices))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 2), st.integers(1, 3))
def test_it_is_as_short_as_any_timetable(rounds: list[int], fixed: int, devices: int) -> None:
    """Against the integer program over every instant, from whole works on."""
    asked = [Work.of(f"t{i}", n, fixed, 1) for i, n in enumerate(rounds)]
    begin = whole(asked, devices)
    found = makespan(shorter(asked, (0,) * devices, begin, 0) or begin)
    assert found == shortest(asked, devices, found)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_all_tiny_cases_are_as_short_as_any(case: tuple[int, int, int]) -> None:
    """As placed, 20 seeds each, whether entering costs a unit or nothing."""
    for fixed in (0, 1):
        for seed in range(20):
            asked = tiny(*case, fixed=fixed, seed=seed)
            found = ours(asked, case[1])
            assert shortest(asked, case[1], found) == found, (case, fixed, seed)


def test_three_equal_works_are_split_over_two_devices() -> None:
    """Two rounds each and nothing to enter: three rounds a device."""
    asked = [Work.of(f"t{i}", 2, 0, 10) for i in range(3)]
    found = shorter(asked, (0, 0), whole(asked, 2), 30)
    assert found is not None
    assert makespan(found) == 30


def test_a_work_that_goes_on_is_one_piece() -> None:
    """Taken in turns by a greedy order, each is in at most two pieces afterwards."""
    asked = [Work.of(f"t{i}", 4, 0, 10) for i in range(3)]
    found = shorter(asked, (0, 0), greedy(asked, (0, 0), "random", 0), 60)
    assert found is not None
    assert len(found) == 4


PAIR = [Work.of("a", 4, 0, 10), Work.of("b", 4, 0, 10), Work.of("c", 4, 0, 10)]


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        ([replace(PAIR[0], deadline_us=5), *PAIR[1:]], (0, 0)),
        ([replace(work, runs=work.runs * 2) for work in PAIR], (0, 1)),
        ([replace(PAIR[0], tasks=("b",)), *PAIR[1:]], (0, 0)),
        ([replace(work, rounds=1000) for work in PAIR], (0, 0)),
    ],
)
def test_cases_it_does_not_know_are_left_alone(asked: list[Work], devices: tuple[int, ...]) -> None:
    """Deadlines, devices of two kinds, works that share a task, many rounds."""
    assert shorter(asked, devices, listed(asked, range(3), devices), 0) is None


def test_what_is_at_the_floor_is_left_alone() -> None:
    """Nothing could be shorter."""
    assert shorter(PAIR[:2], (0, 0), whole(PAIR[:2], 2), 40) is None
