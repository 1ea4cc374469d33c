"""The simulator against a plain unrolled simulation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.unrolled import duration, periodic, positions, unrolled

from planner.rounds.timeline import Deadlock, once
from plans.schema import Op


def entry(name: str, stream: str, us: int, *after: str) -> Op:
    return Op(f"t.s0.{name}", stream, 0, us, after=tuple(f"t.s0.{a}" for a in after))


@st.composite
def rounds(draw: st.DrawFn) -> list[Op]:
    """Random ops on up to three streams with edges that never close a circle in a round."""
    count = draw(st.integers(1, 9))
    entries = []
    for i in range(count):
        after = draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else []
        late = draw(st.lists(st.integers(0, count - 1), max_size=2))
        names = [f"P{a}" for a in sorted(set(after))] + [f"P{a}@-1" for a in sorted(set(late))]
        stream = draw(st.sampled_from(["0.compute", "0.h2d", "0.d2h"]))
        entries.append(entry(f"P{i}", stream, draw(st.integers(0, 20)), *names))
    return entries


@given(rounds())
def test_the_period_is_the_growth_rate_of_the_unrolled_execution(entries: list[Op]) -> None:
    """No valid period is shorter than the long-run growth, and ours is at most 1 µs above it."""
    phase = periodic(entries)
    starts = unrolled(entries, 200)
    growth = max(starts[199][n] - starts[99][n] for n in starts[0]) / 100
    assert growth - 1e-9 <= phase.period_us
    if len({starts[199][n] - starts[198][n] for n in starts[0]}) == 1:
        assert phase.period_us <= growth + 1


@given(rounds())
def test_periodic_times_respect_every_order_in_every_round(entries: list[Op]) -> None:
    """Closed-form times never start an op before what it waits for has ended."""
    phase = periodic(entries)
    at = {op.id: op for op in phase.ops}
    last: dict[str, Op] = {}
    first: dict[str, Op] = {}
    for op in phase.ops:
        if op.stream in last:
            assert op.start_us >= last[op.stream].end_us
        first.setdefault(op.stream, op)
        last[op.stream] = op
        for name in op.after:
            other = at[name.removesuffix("@-1")]
            assert op.start_us >= other.end_us - (phase.period_us if "@" in name else 0)
    for stream, op in first.items():
        assert op.start_us + phase.period_us >= last[stream].end_us


@given(rounds(), st.integers(1, 20))
def test_no_run_takes_longer_than_the_closed_form(entries: list[Op], count: int) -> None:
    """The closed form is an upper bound on the first `count` rounds of any program."""
    phase = periodic(entries)
    took = {op.id: duration(op) for op in entries}
    end = max(start + took[name] for name, start in unrolled(entries, count)[-1].items())
    assert end <= (count - 1) * phase.period_us + phase.span_us


def test_a_circle_is_named() -> None:
    """Two ops that wait for each other are a deadlock, not a hang."""
    circle = [entry("P0", "0.h2d", 1, "P1"), entry("P1", "0.d2h", 1, "P0")]
    with pytest.raises(Deadlock, match=r"\[0, 1\]"):
        once([duration(op) for op in circle], *positions(circle))


def test_a_copy_hides_behind_compute() -> None:
    """With two slots the prefetch of the next shard runs while this one computes."""
    phase = periodic(
        [
            entry("P0", "0.h2d", 10, "F1@-1"),
            entry("F0", "0.compute", 30, "P0"),
            entry("P1", "0.h2d", 10, "F0@-1"),
            entry("F1", "0.compute", 30, "P1"),
        ]
    )
    assert phase.period_us == 70  # F0 F1 and the one copy that waits for F1's slot
