"""What a book says of its plans: speed by devices, what changes cost, which devices are idle."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import plans
from planner.views import book_summary, describe_book
from plans import Book

SAMPLE = plans.load(Path(plans.__file__).with_name("sample.json"))


def book(*times: int) -> Book:
    """Plans that take so many µs, for one to so many times the devices of the sample, of which each
    trains on the first ones."""
    return Book(
        plans=tuple(
            replace(
                SAMPLE,
                devices=SAMPLE.devices * more,
                prediction=replace(SAMPLE.prediction, makespan_us=us),
            )
            for more, us in enumerate(times, 1)
        )
    )


def test_changes_cost_what_lies_between_kept_states_and_a_start() -> None:
    """More devices pay where what is left takes so long that the difference is more than a start,
    and never where they are no faster than the fastest on fewer."""
    shown = describe_book(book(60, 40, 50, 30), 7_000_000, "as given").splitlines()
    rows = [row.split("  ") for row in shown[2:6]]
    kept = max(segment.end_us - segment.start_us for segment in SAMPLE.segments)
    assert [row[-1].strip() for row in rows] == ["-", "21.00 s", "never", "28.00 s"]
    assert any("and a start of 7.00 s (as given)" in line for line in shown)
    for figures in book_summary(book(60, 40), 7_000_000):
        assert figures["loss_us"] == kept // 2 + 7_000_000


@pytest.mark.parametrize(("us", "idle"), [(60, "; 2 device(s) are no slower"), (50, "")])
def test_idle_devices_are_told(us: int, idle: str) -> None:
    """Of a plan that does not train on them, or where fewer are as fast."""
    shown = describe_book(book(60, us)).splitlines()
    assert shown[-1] == f"4 device(s): 2 idle{idle}"
