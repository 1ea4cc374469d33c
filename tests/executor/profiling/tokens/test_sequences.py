"""The lengths that a task is measured at, and sequences of them from its samples."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tokens import LENGTHS, Embedding, data, task

from executor.errors import UsageError, WorkloadError
from executor.profiling.tokens import check_asked, check_evaluation, one, sizes, tried
from executor.workload import Evaluation

TASK = task(Embedding())


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=20))
def test_lengths_are_chosen_so_that_curves_can_be_fitted(lengths: list[int]) -> None:
    """Four or more, from the usual one or below up to the longest, one a multiple of 256, and none
    longer than any sample unless all are shorter than that."""
    found = sizes(replace(TASK, lengths=lengths), ())
    assert found == sorted(set(found))
    assert len(found) >= 4
    assert found[0] >= 16
    assert found[-1] % 256 == 0
    assert max(lengths) - 255 <= found[-1] <= max(256, *lengths, 256)
    assert found[-1] >= 8 * found[0] or found[0] <= 32


def test_lengths_that_are_asked_for_are_taken() -> None:
    """In ascending order."""
    assert sizes(TASK, (512, 64, 256, 100)) == [64, 100, 256, 512]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ((128, 256, 512), "--lengths lists 3 lengths; a curve needs 4"),
        ((256, 256, 512, 512), "--lengths lists 2 lengths; a curve needs 4"),
        ((100, 200, 300, 400), "--lengths 100,200,300,400: one must be a multiple of 256"),
    ],
)
def test_lengths_that_no_curve_can_be_fitted_to(asked: tuple[int, ...], text: str) -> None:
    """Too few, or none from which bytes are known."""
    with pytest.raises(UsageError, match=text):
        check_asked(asked)


@pytest.mark.parametrize(
    ("give", "text"),
    [
        (lambda n: data([n])[0], ""),
        (lambda n: data([n - (n == 2)])[0], "sample 2 has 40 tokens, lengths say 12"),
        (lambda n: None, "sample 0 is something else than a pair"),
        (
            lambda n: (data([n])[0][0].float(), data([n])[0][1]),
            r"sample 0 has tokens of float32\[\], float32\[8\], sample 0 of training of int64",
        ),
    ],
)
def test_samples_of_evaluations_are_looked_at(give: Callable[[int], Any], text: str) -> None:
    """The first, the last and the longest; they are like those of training."""
    asked: list[int] = []

    def held(samples: Sequence[int]) -> list[Any]:
        asked.extend(samples)
        return [give(n) for n in samples]

    task = replace(TASK, evaluate=Evaluation(1, held, lengths=LENGTHS[:3]))
    with pytest.raises(WorkloadError, match=text) if text else nullcontext():
        check_evaluation(task)
    assert asked == [0, 1, 2]


def test_a_sequence_is_the_longest_sample_and_what_follows() -> None:
    """Cut to so many tokens, as one sequence."""
    (longest, _), (after, _), (last, _), (first, _) = data([3, 4, 5, 0])
    tokens = torch.cat([longest, after, last, first])
    stack = one(TASK, 140).inputs
    assert torch.equal(stack[:, 0], tokens[:140])
    assert torch.equal(stack[:, 1], torch.arange(140))
    assert not stack[:, 2].any()
    assert torch.equal(one(TASK).inputs[:, 0], longest)


def test_samples_are_repeated_where_they_are_too_few() -> None:
    """A sequence longer than all samples together."""
    assert len(one(TASK, 3 * sum(LENGTHS)).inputs) == 3 * sum(LENGTHS)


def test_several_beginnings_are_tried() -> None:
    """The first one is given, the others have as many tokens of other samples."""
    first = one(TASK, 60)
    found = tried(TASK, first)
    assert found[0] is first
    assert list(found) == [0, 2, 4]
    assert torch.equal(found[4].inputs[:7, 0], data([4])[0][0])
    assert {len(batch.inputs) for batch in found.values()} == {60}


def test_data_that_does_not_keep_its_lengths_is_named() -> None:
    """By the sample and both numbers."""
    shorter = replace(TASK, lengths=[n - (n == 100) for n in LENGTHS])
    with pytest.raises(
        WorkloadError, match=r"^task toy: data\(\[3\]\): sample 3 has 100 tokens, lengths say 99$"
    ):
        one(shorter)
