"""Placement against brute force, and wrap-around against its own rules."""

import time
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from planner.placement import Piece, Work, makespan, place
from planner.problem import Effort

works = st.lists(
    st.builds(
        lambda rounds, fixed, period: Work("", rounds, fixed, period),
        st.integers(1, 30),
        st.integers(0, 20),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=5,
).map(lambda ws: [Work(f"t{i}", w.rounds, w.fixed_us, w.period_us) for i, w in enumerate(ws)])


def placed(asked: list[Work], devices: int) -> list[Piece]:
    floor = max(work.rounds * work.period_us for work in asked)
    return place(asked, devices, floor, Effort(time.monotonic() + 10, 0))


@given(works, st.integers(1, 3))
def test_pieces_are_whole_and_never_in_two_places(asked: list[Work], devices: int) -> None:
    """All rounds run, each piece as long as it must, devices and tasks one piece at a time."""
    pieces = placed(asked, devices)
    for work in asked:
        mine = [p for p in pieces if p.task == work.task]
        assert sum(p.rounds for p in mine) == work.rounds
        assert all(p.end_us - p.start_us == work.us(p.rounds) for p in mine)
    for left, right in ((a, b) for a in pieces for b in pieces if a is not b):
        if left.task == right.task or left.device == right.device:
            assert left.end_us <= right.start_us or right.end_us <= left.start_us
    assert [p.start_us for p in pieces] == sorted(p.start_us for p in pieces)


@given(works, st.integers(1, 3))
def test_no_assignment_of_whole_tasks_is_shorter(asked: list[Work], devices: int) -> None:
    """All ways to put whole tasks on devices, tried one by one."""
    best = min(
        max(
            sum(w.whole_us for w, d in zip(asked, where, strict=True) if d == device)
            for device in range(devices)
        )
        for where in product(range(devices), repeat=len(asked))
    )
    assert makespan(placed(asked, devices)) <= best


def test_three_equal_tasks_on_two_devices_are_wrapped() -> None:
    """One task changes devices in the middle, and no device idles."""
    pieces = placed([Work(f"t{i}", 100, 0, 10) for i in range(3)], 2)
    assert makespan(pieces) == 1500
    assert len(pieces) == 4


def test_long_tasks_do_not_hold_up_the_solver() -> None:
    """Hours in µs are coefficients on which HiGHS would not return; they are scaled."""
    hours = [9346653556, 3787324501, 9164305467, 10076150518, 14943924136]
    asked = [Work(f"t{i}", 1, us - 1, 1) for i, us in enumerate(hours)]
    pieces = place(asked, 3, 0, Effort(time.monotonic() + 2, 0))
    assert makespan(pieces) <= 18_510_959_023  # longest first reaches this
