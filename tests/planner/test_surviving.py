"""What a book would train on machines that come and go: against a simulation tick by tick."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import plans
from planner.surviving import Count, Outcome, Pace, _best, counted, paces_of, read_trace, survive
from profiles.errors import FormatError

PACES = [Pace(2, 1.0, 5), Pace(3, 1.5, 4), Pace(4, 1.2, 4), Pace(6, 3.0, 2)]


def tick_by_tick(counts: list[Count], end: int, start: int) -> tuple[float, float]:
    """Work that is trained in the end, and with changes that cost nothing."""
    there, kept, fresh, free = 0, 0.0, 0.0, 0.0
    now: Pace | None = None
    waits = since = 0
    begun = False
    changes = dict(counts)
    for tick in range(end):
        there = changes.get(tick, there)
        fit = [pace for pace in PACES if pace.devices <= there]
        best = max(fit, key=lambda pace: pace.rate, default=None)
        if best is not now:
            if now and there >= now.devices:
                kept += fresh  # rounds end, states are kept
            fresh, since = 0.0, 0
            waits = start if begun else 0
            now = best
        if now:
            begun, free = True, free + now.rate
            if waits:
                waits -= 1
                continue
            fresh, since = fresh + now.rate, since + 1
            if since % now.kept_us == 0:
                kept, fresh = kept + fresh, 0.0
    return kept + fresh, free


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 7)), min_size=1, max_size=12),
    st.integers(0, 6),
)
def test_the_outcome_is_that_of_a_simulation_by_ticks(
    steps: list[tuple[int, int]], start: int
) -> None:
    """Whatever comes and goes, and however long a start takes."""
    counts, at = list[Count](), 0
    for length, count in steps:
        counts.append((at, count))
        at += length
    found = survive(PACES, counts, at, start)
    trained, free = tick_by_tick(counts, at, start)
    assert (found.trained, found.free) == (pytest.approx(trained), pytest.approx(free))
    assert found.free == pytest.approx(found.trained + found.again + found.starting)


def test_a_loss_costs_the_work_since_states_were_kept() -> None:
    """And the start; a device that comes costs the start alone."""
    found = survive(PACES, [(0, 3), (10, 2), (20, 3)], 30, 1)
    assert found == Outcome(
        trained=10 * 1.5 - 2 * 1.5 + 9 * 1.0 + 9 * 1.5,
        free=20 * 1.5 + 10 * 1.0,
        again=2 * 1.5,
        starting=1.0 + 1.5,
        changes=2,
        losses=1,
    )


def test_with_notice_nothing_is_lost_with_devices() -> None:
    """A start is what a change costs."""
    found = survive(PACES, [(0, 3), (10, 2), (20, 3)], 30, 1, notice=True)
    assert (found.again, found.starting, found.losses) == (0, 1.0 + 1.5, 1)


def test_devices_that_do_not_help_are_left_idle() -> None:
    """A fourth one would make it slower: it comes and goes without a change."""
    assert survive(PACES, [(0, 3), (5, 4), (9, 3)], 20, 3).changes == 0


def test_a_run_takes_the_plan_of_the_pace_that_is_assumed() -> None:
    """Whatever number of devices there is: the fastest, of equals that for the fewest."""
    sample = plans.load(Path(plans.__file__).with_name("sample.json"))
    sizes = [
        replace(
            sample,
            devices=sample.devices * more,
            prediction=replace(sample.prediction, makespan_us=us),
        )
        for more, us in enumerate((9, 7, 7, 8, 5), 1)
    ]
    book = plans.Book(plans=tuple(sizes))
    best = _best(paces_of(book))
    for count in range(6 * len(sample.devices)):
        plan, pace = plans.fastest(book, count), best(count)
        assert (plan and len(plan.devices)) == (pace and pace.devices)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], "it has no events"),
        ([[0, "add", "a"], [5, "add", "a"]], "add of a, which is there"),
        ([[0, "remove", "a"]], "remove of a, which is not"),
        ([[9, "add", "a"], [5, "add", "b"]], "b comes before an event"),
        ([[0, "lost", "a"]], "lost of a"),
        ([["now", "add", "a"]], "whole numbers of ms"),
        ([[0, "add"]], "not enough values"),
        (7, "it has no events"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, events: object, told: str) -> None:
    """By what is wrong with it."""
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(events))
    with pytest.raises(FormatError, match=told):
        read_trace(str(file))


def test_events_of_one_moment_count_together() -> None:
    """As one change."""
    events = [(0, "add", "a"), (0, "add", "b"), (7, "remove", "a"), (7, "add", "c")]
    assert counted(events) == [(0, 2), (7, 2)]
