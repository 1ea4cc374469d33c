"""Evaluation on samples of every length gives what loops without Gantry do, and changes nothing."""

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.judged import EVERY, HELD, held, held_alone, held_packed, judged
from support.same import step_in
from support.texted import (
    MOST,
    Packed,
    as_packed,
    masked,
    moved,
    one_by_one,
    packed,
    samples_of,
    trained,
)

from executor import run
from executor.errors import InterruptedRun, MismatchError, RunError
from executor.records import Options, Result
from plans.order import Reached, rest

KINDS = ((MOST, MOST), (MOST,))
RUNS = ((0, 2), (1, 1), (0, 2))


def ran(made: Packed, **options: Any) -> Result:
    return run(made.plan, [made.task], Options(tables=made.path, **options))


def with_held(made: Packed, **change: Any) -> Packed:
    """The plan with a task that is evaluated otherwise."""
    assert made.task.evaluate
    return made._replace(task=replace(made.task, evaluate=replace(made.task.evaluate, **change)))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("streamed", {}),
        ("streamed", {"judged_weights": [n % 3 + 0.5 for n in HELD]}),
        ("saved", {}),
        ("pipeline", {}),
    ],
)
def test_evaluations_have_the_losses_of_an_ordinary_loop(name: str, more: dict[str, Any]) -> None:
    """Sample by sample without padding, and to the last bit in the same microbatches."""
    made = judged(name, KINDS, RUNS, **more)
    result = ran(made)
    assert sorted(result.val_losses["a"]) == [2, 4]
    alone = trained(made.task, one_by_one, judged=held_alone)
    torch.testing.assert_close(result.val_losses["a"], alone.val_losses, rtol=1e-6, atol=0)
    parts = partial(as_packed, made), made.of
    same = trained(made.task, *parts, judged=partial(held_packed, made))
    assert result.val_losses["a"] == same.val_losses
    assert result.losses["a"] == same.losses


def test_targets_that_are_left_out_do_not_count_in_an_evaluation() -> None:
    """It is the mean over the others of all rounds."""
    made = with_held(judged("pipeline", KINDS, RUNS), data=partial(masked, texts=held))
    alone = partial(one_by_one, 0, lambda step: [*range(len(HELD))], partial(masked, texts=held))
    expected = trained(made.task, one_by_one, judged=alone).val_losses
    torch.testing.assert_close(ran(made).val_losses["a"], expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["streamed", "pipeline"])
def test_moved_samples_and_dropout_go_with_evaluation(name: str) -> None:
    """To the last bit: evaluations draw nothing, and their samples stay where they are."""
    made = moved(judged(name, KINDS, RUNS, dropout=0.3), 4)
    result = ran(made)
    parts = partial(as_packed, made), made.of
    same = trained(made.task, *parts, judged=partial(held_packed, made))
    assert result.losses["a"] == same.losses
    assert result.val_losses["a"] == same.val_losses
    assert made.order != [samples_of(step) for step in range(made.task.steps)]


def test_training_has_the_bits_that_it_has_without_evaluation() -> None:
    """Also where a segment ends in the middle of a run of rounds of a kind."""
    made, never = (
        judged("streamed", KINDS, ((1, 3), (0, 2))),
        packed("streamed", KINDS, ((1, 3), (0, 2))),
    )
    result, expected = ran(made), ran(never)
    assert result.losses == expected.losses
    params = dict(expected.model("a").named_parameters())
    assert all(torch.equal(p, params[name]) for name, p in result.model("a").named_parameters())


@pytest.mark.usefixtures("heard")
def test_a_run_that_was_interrupted_in_an_evaluation_makes_it_anew(tmp_path: Path) -> None:
    """And goes on with the same bits."""
    made = judged("streamed", KINDS, RUNS)
    whole, calls = ran(made), 0

    def pressing(samples: Sequence[int]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:  # the first round of the second evaluation
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.5)  # so that it is heard before there are more batches
        return held(samples)

    with pytest.raises(InterruptedRun):
        ran(with_held(made, data=pressing), folder=tmp_path)
    done = step_in(tmp_path)
    owed = ("a",) if done % EVERY == 0 else ()
    made = made._replace(plan=rest(made.plan, Reached({"a": done}, owed)))
    result = ran(made, folder=tmp_path)
    assert result.losses["a"] == whole.losses["a"][done:]
    due = {n: loss for n, loss in whole.val_losses["a"].items() if n > done or (n == done and owed)}
    assert result.val_losses["a"] == due != {}


def test_data_of_another_length_ends_the_run() -> None:
    """With the sample and both numbers."""

    def longer(samples: Sequence[int]) -> Any:
        pairs = zip(samples, held(samples), strict=True)
        return [(x[: len(x) - (n == 11)], y) for n, (x, y) in pairs]

    text = f"task a: evaluation data: sample 11 has {HELD[11] - 1} tokens, lengths say {HELD[11]}"
    with pytest.raises(RunError, match=text):
        ran(with_held(judged("resident", KINDS, RUNS), data=longer))


def test_a_run_takes_no_other_samples_to_evaluate_on() -> None:
    """One line with both; nothing is trained."""
    made = judged("resident", KINDS, RUNS)
    for change, words in (
        ({"lengths": HELD[:-1]}, "evaluation: samples: 17 in the plan, 16 in the workload"),
        ({"lengths": [*HELD[:-1], 7]}, r"evaluation: sha256 of the lengths: \w{12}… in the plan"),
        ({"every": 3}, "evaluation: after every 2 steps in the plan, after every 3 steps in the"),
    ):
        with pytest.raises(MismatchError, match=f"task a: {words}"):
            ran(with_held(made, **change))
    with pytest.raises(MismatchError, match="task a: evaluation: after every 2 steps in the plan"):
        ran(made._replace(task=replace(made.task, evaluate=None)))
