"""Times as people type and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.units import LARGEST, parse_us, show_clock


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("90s", 90_000_000),
        ("1:23:00", 4_980_000_000),
        ("01:23:00", 4_980_000_000),
        ("83m", 4_980_000_000),
        ("83:00", 4_980_000_000),
        ("1.5h", 5_400_000_000),
        ("250ms", 250_000),
        ("12us", 12),
        ("4980", 4_980_000_000),
        ("0.000001", 1),
        ("0", 0),
    ],
)
def test_times_are_read_in_all_their_forms(text: str, us: int) -> None:
    """A clock, a number with a unit, or plain seconds."""
    assert parse_us(text) == us


@pytest.mark.parametrize("text", ["", "s", "-1s", "1:2", "1:2:3:04", "3d", "1e3", "nan", "1,5s"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    """The error says how to write one."""
    with pytest.raises(ValueError, match="write it like 90s, 1:23:00, 83m"):
        parse_us(text)


def test_times_beyond_all_plans_are_refused() -> None:
    """No prediction is as long."""
    with pytest.raises(ValueError, match="more than 35 years"):
        parse_us("999999h")


@given(st.integers(0, LARGEST))
def test_a_clock_reads_back_exactly(us: int) -> None:
    """What is shown to the µs may be typed again."""
    assert parse_us(show_clock(us)) == us
