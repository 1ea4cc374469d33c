"""Shapes of lengths against plain loops over samples, and in words."""

from collections.abc import Callable
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.texts import text_task

from planner.views import Shape, classes, describe_lengths, shape_of
from planner.views import lengths as module

FORMULA = (20_000, 3_000_000, 50_000)


def _shape(lengths: list[int], batch: int, steps: int = 100) -> Shape:
    array = np.array(lengths, np.uint32)
    return shape_of(text_task(lengths=array, batch=batch, steps=steps, formula=FORMULA), array)


MANY = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(MANY, st.integers(1, 7), st.integers(1, 9))
def test_counts_are_those_of_a_loop(lengths: list[int], batch: int, chunk: int) -> None:
    """Also when few samples are looked at in turn: quantiles, classes, the longest of each step."""
    batch = min(batch, len(lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        found = _shape(lengths, batch)
    ordered = sorted(lengths)
    for part in (0.01, 0.5, 0.9, 1.0):
        assert found.samples.quantile(part) == ordered[ceil(len(lengths) * part) - 1]
    steps = range(len(lengths) // batch)
    longest = sorted(max(lengths[t * batch : (t + 1) * batch]) for t in steps)
    assert np.repeat(found.longest.values, found.longest.counts).tolist() == longest
    for first, end, *parts in classes(found.samples):
        inside = [n for n in lengths if first <= n < end]
        for power, part in enumerate(parts):
            mine, every = (sum(n**power for n in some) for some in (inside, lengths))
            assert part == pytest.approx(mine / every)


def _loop(lengths: list[int], room: int, full: Callable[[list[int], int], bool]) -> list[list[int]]:
    """Microbatches of samples in turn, a new one wherever the last one is full for the next."""
    made: list[list[int]] = [[]]
    for n in lengths:
        if made[-1] and full(made[-1], n):
            made.append([])
        made[-1].append(n)
    return made


@given(MANY)
def test_waste_is_that_of_a_loop(lengths: list[int]) -> None:
    """Microbatches filled one by one, padding and compute counted token by token."""
    found = _shape(lengths, len(lengths))
    room, top, total = found.room, max(lengths), sum(lengths)
    a, b, c = FORMULA

    def time(microbatches: int, tokens: int, squares: int) -> float:
        return a * squares + 1000 * b * tokens + 10**6 * c * microbatches

    least = time(-(-total // room), total, sum(n * n for n in lengths))
    step = _loop([top] * len(lengths), room, lambda held, n: (len(held) + 1) * top > room)
    rows = _loop(sorted(lengths)[::-1], room, lambda held, n: (len(held) + 1) * held[0] > room)
    turn = _loop(lengths, room, lambda held, n: sum(held) + n > room)
    for waste, made, tokens, squares in zip(
        found.wastes,
        (step, rows, turn),
        (top * len(lengths), sum(len(m) * m[0] for m in rows), room * len(turn)),
        (top**2 * len(lengths), sum(len(m) * m[0] ** 2 for m in rows), sum(n * n for n in lengths)),
        strict=True,
    ):
        assert waste.microbatches == len(made)
        assert waste.padding == pytest.approx(1 - total / tokens)
        assert waste.compute == pytest.approx(time(len(made), tokens, squares) / least, rel=5e-3)


def test_lengths_that_are_too_many_to_tell_apart_are_told_nearly() -> None:
    """Within one part in half a million."""
    lengths = [2**31 + 77, 2**31 - 5, 100_000, 7]
    found = _shape(lengths, 2)
    for part, exact in ((0.25, 7), (0.5, 100_000), (0.75, 2**31 - 5), (1.0, 2**31 + 77)):
        assert abs(found.samples.quantile(part) - exact) <= 2**12
    assert sum(row[2] for row in classes(found.samples)) == pytest.approx(1)


def test_words_say_how_long_samples_are_and_what_is_lost() -> None:
    """A line for each class of lengths and for each way to make microbatches."""
    told = describe_lengths(_shape(([100] * 9 + [1000]) * 10, 10)).splitlines()
    assert told[0].startswith("text: 100 samples, 19,000 tokens; mean 190, median 100, p90 100")
    assert told[3].split()[:7] == ["64", "-", "127", "90.0%", "47.4%", "47.4%", "8.3%"]
    assert told[4].split()[:7] == ["512", "-", "1,000", "10.0%", "52.6%", "100.0%", "91.7%"]
    assert "of the 10 samples of a step, of 10 steps: median 1,000, p90 1,000" in told[6]
    assert told[9].split()[-3:-1] == ["10.0", "81.0%"]


def test_steps_are_no_more_than_the_task_has() -> None:
    """Samples that no step has count among samples only."""
    found = _shape([5, 6, 7, 8, 1000, 1000], 2, steps=2)
    assert found.longest.counts.sum() == 2
    assert found.longest.quantile(1.0) == 8
    assert found.samples.quantile(1.0) == 1000
