"""Samples of every length: a run trains what loops without Gantry do, however they are packed."""

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec import structs
from support.same import step_in
from support.texted import (
    BATCH,
    LENGTHS,
    MOST,
    SAMPLES,
    Packed,
    Text,
    Trained,
    as_packed,
    data,
    masked,
    moved,
    one_by_one,
    packed,
    trained,
    with_rows,
)
from torch import Tensor

from executor import run
from executor.errors import InterruptedRun, MismatchError, RunError
from executor.records import Options, Result
from executor.workload import pack, planned_shapes, steps_of, take
from plans.order import Reached, rest
from profiles.errors import FormatError

KINDS = ((MOST, MOST), (MOST,), (256, 256))
EVERY_STEP = ((0, 1), (1, 1), (2, 1), (0, 1), (1, 1), (2, 1))
IN_A_ROW = ((2, 2), (1, 1), (0, 3))


def ran(made: Packed, **options: Any) -> Result:
    return run(made.plan, [made.task], Options(tables=made.path, **options))


def params(result: Result) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in result.model("a").named_parameters()}


def assert_same(result: Result, expected: Trained, *, rtol: float = 0.0) -> None:
    """To the last bit, or within the rounding of sums."""
    torch.testing.assert_close(result.losses["a"], expected.losses, rtol=rtol, atol=0)
    torch.testing.assert_close(params(result), expected.params, rtol=rtol, atol=1e-6 * rtol)


@pytest.mark.parametrize(
    ("name", "runs", "more"),
    [
        ("streamed", EVERY_STEP, {}),
        ("streamed", IN_A_ROW, {"weights": [n % 3 + 0.5 for n in LENGTHS]}),
        ("packed", EVERY_STEP, {}),
        ("saved", IN_A_ROW, {}),
        ("halves", EVERY_STEP, {}),
        ("pipeline", EVERY_STEP, {}),
        ("pipeline", IN_A_ROW, {}),
    ],
)
def test_any_packing_trains_the_ordinary_loop(
    name: str, runs: tuple[tuple[int, int], ...], more: dict[str, Any]
) -> None:
    """Sequence by sequence without padding, and to the last bit in the same microbatches."""
    made = packed(name, KINDS, runs, **more)
    result = ran(made)
    assert_same(result, trained(made.task, one_by_one), rtol=1e-6)
    assert_same(result, trained(made.task, lambda step: as_packed(made, step)))


@pytest.mark.parametrize(("name", "padded"), [("parallel", False), ("streamed", True)])
def test_replicas_and_padding_train_it_too(name: str, padded: bool) -> None:
    """Two devices with a microbatch each; sequences that are extended to the longest one."""
    made = packed(name, ((MOST, MOST), (256, MOST)), ((0, 2), (1, 1), (0, 1)), padded=padded)
    assert_same(ran(made), trained(made.task, one_by_one), rtol=1e-6)


@pytest.mark.parametrize(("name", "window"), [("streamed", 4), ("pipeline", 6)])
def test_samples_that_move_within_windows_train_the_loop_with_them(name: str, window: int) -> None:
    """To the last bit in the same microbatches; the last window is shorter."""
    made = moved(packed(name, KINDS, IN_A_ROW), window)
    result = ran(made)
    assert_same(result, trained(made.task, partial(one_by_one, of=made.of), made.of), rtol=1e-6)
    assert_same(result, trained(made.task, partial(as_packed, made), made.of))
    as_they_come = trained(made.task, one_by_one)
    assert not np.allclose(result.losses["a"], as_they_come.losses, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "runs", "padded"),
    [
        ("streamed", EVERY_STEP, False),
        ("saved", IN_A_ROW, False),
        ("halves", EVERY_STEP, False),
        ("packed", IN_A_ROW, True),
        ("pipeline", EVERY_STEP, False),
    ],
)
def test_dropout_draws_what_a_loop_over_the_same_microbatches_draws(
    name: str, runs: tuple[tuple[int, int], ...], padded: bool
) -> None:
    """To the last bit, whatever the tokens of those before are, on one device and on two."""
    made = packed(name, KINDS, runs, dropout=0.3, padded=padded)
    assert made.plan.tasks[0].lengths.token_draws
    assert_same(ran(made), trained(made.task, lambda step: as_packed(made, step)))


def test_replicas_draw_what_one_loop_draws() -> None:
    """Two devices with a microbatch each, one of them without samples in some step."""
    made = packed("parallel", ((MOST, MOST), (MOST, 256)), ((0, 2), (1, 1), (0, 1)), dropout=0.3)
    rows = made.rows.copy()
    rows[1] = 1
    made = with_rows(made, rows)
    assert_same(ran(made), trained(made.task, lambda step: as_packed(made, step)), rtol=1e-6)


def test_draws_that_the_plan_does_not_know_end_the_run() -> None:
    """With both numbers, where the microbatch is shorter than the longest."""
    made = packed("streamed", KINDS, ((0, 1),), dropout=0.3)
    (task,) = made.plan.tasks
    lengths = structs.replace(task.lengths, token_draws=())
    plan = structs.replace(made.plan, tasks=(structs.replace(task, lengths=lengths),))
    with pytest.raises(RunError, match=r"F0.*\d+ now and \d+ in the plan.*profile and build again"):
        ran(made._replace(plan=plan))


def test_a_microbatch_without_samples_adds_nothing() -> None:
    """Whatever the loss of its padding is."""
    made = packed("streamed", KINDS, ((0, 3),), loss=lambda y, targets: (y**2).sum() + len(y))
    made = with_rows(made, np.ones_like(made.rows))
    assert_same(ran(made), trained(made.task, one_by_one), rtol=1e-6)


def averaged(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum as a mean that is no number where nothing counts."""
    return F.cross_entropy(outputs, targets) * (targets != -100).sum()


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("streamed", {}),
        ("parallel", {"loss": averaged}),
        ("pipeline", {"weight": lambda sample: (sample[1] != -100).sum()}),
    ],
)
def test_targets_that_are_left_out_do_not_count(name: str, more: dict[str, Any]) -> None:
    """Of a whole step; a microbatch in which nothing counts adds nothing."""
    made = packed(name, ((MOST, MOST),), ((0, 6),), data=masked, **more)
    rows = np.array([[n % 3 == 0 for n in made.of(step)] for step in range(6)], np.uint16)
    expected = trained(
        replace(made.task, loss=partial(F.cross_entropy, reduction="sum")),
        partial(one_by_one, texts=masked),
    )
    for changed in (made, with_rows(made, rows)):
        assert_same(ran(changed), expected, rtol=1e-9)


def test_samples_that_count_nothing_have_no_loss() -> None:
    """Whatever they share a microbatch with; where none of a step counts the run ends."""
    made = packed("streamed", KINDS, EVERY_STEP, weights=[n % 3 for n in range(SAMPLES)])
    counted = partial(one_by_one, of=lambda step: [n for n in made.of(step) if n % 3])
    assert_same(ran(made), trained(made.task, counted), rtol=1e-7)
    nothing = replace(made.task, weights=[0] * SAMPLES)
    with pytest.raises(RunError, match="task a: step 0: data: the weights of all samples are 0"):
        ran(made._replace(task=nothing))


def test_nothing_attends_across_sequences() -> None:
    """Another text beside it changes no bit of what a sequence gives."""
    made = packed("resident", KINDS, ((0, 1),))
    model, taken = Text(2), take(made.task, [3, 4, 5])
    found = []
    for change in (0, 1):
        middle = taken[1]._replace(inputs=(taken[1].inputs + change) % 13)
        given = pack(made.task, [taken[0], middle, taken[2]]).inputs
        found.append(model(*given).split([LENGTHS[n] for n in (3, 4, 5)]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][2], found[1][2])
    assert not torch.equal(found[0][1], found[1][1])


def test_only_the_samples_that_are_needed_are_asked_for() -> None:
    """Those of the microbatches that are wanted, in one call for each step; all of the step where
    it is not known what they count."""
    asked: list[list[int]] = []

    def noted(samples: Sequence[int]) -> Any:
        asked.append(list(samples))
        return data(samples)

    made = packed("resident", KINDS, ((0, 2),))
    for weights in (LENGTHS, None):
        task = replace(made.task, data=noted, weights=weights)
        steps = steps_of(made.plan.tasks[0], task, planned_shapes(made.plan)["a"], made.path)
        assert set(steps.packed(1, [1])) == {1}
    own = [BATCH + j for j in np.flatnonzero(made.rows[1] == 1)]
    assert asked == [own, made.of(1)]


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("window", [1, 6])
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path: Path, window: int) -> None:
    """In the middle of kinds that change at every step, of the table, of a window, and of the
    random numbers."""
    made = moved(packed("streamed", KINDS, EVERY_STEP, dropout=0.3), window)
    whole, pressed = ran(made), False

    def pressing(samples: Sequence[int]) -> Any:
        nonlocal pressed
        if made.of(3)[0] in samples and not pressed:
            pressed = True
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)  # it is heard by the main thread, which may be late
        return data(samples)

    made = made._replace(task=replace(made.task, data=pressing))
    with pytest.raises(InterruptedRun):
        ran(made, folder=tmp_path)
    done = step_in(tmp_path)
    assert 0 < done < made.task.steps
    made = made._replace(plan=rest(made.plan, Reached({"a": done})))
    result = ran(made, folder=tmp_path)
    assert result.losses["a"] == whole.losses["a"][done:]
    assert all(torch.equal(p, params(whole)[name]) for name, p in params(result).items())


def test_data_of_another_length_ends_the_run() -> None:
    """With the step, the sample and both numbers."""

    def longer(samples: Sequence[int]) -> Any:
        return [
            (x[: len(x) - (n == 11)], y) for n, (x, y) in zip(samples, data(samples), strict=True)
        ]

    made = packed("resident", KINDS, ((0, 4),))
    text = (
        f"task a: step 2: data: sample 11 has {LENGTHS[11] - 1} tokens, lengths say {LENGTHS[11]}"
    )
    with pytest.raises(RunError, match=text):
        ran(made._replace(task=replace(made.task, data=longer)))


def test_a_run_takes_no_other_lengths_and_no_other_table() -> None:
    """One line with both; nothing is trained."""
    made = packed("resident", KINDS[2:], ((0, 2),))
    for change, words in (
        ({"lengths": [*LENGTHS[:-1], 7]}, r"sha256 of the lengths: \w{12}… in the plan, \w{12}…"),
        ({"lengths": LENGTHS[:-1]}, f"samples: {len(LENGTHS)} in the plan, {len(LENGTHS) - 1} in"),
        ({"batch": BATCH + 1}, f"samples of a step: {BATCH} in the plan, {BATCH + 1} in the work"),
    ):
        with pytest.raises(MismatchError, match=f"task a: {words}"):
            ran(made._replace(task=replace(made.task, **change)))
    with pytest.raises(MismatchError, match="task a: its samples have lengths; say where the plan"):
        run(made.plan, [made.task])
    full = with_rows(made, np.zeros_like(made.rows))
    with pytest.raises(RunError, match=r"step 0: data: microbatch \d has \d+ tokens, the plan has"):
        ran(full)
    with pytest.raises(MismatchError, match=r"\.a\.samples: its sha256 is \w{12}…, that of the"):
        ran(made._replace(path=full.path))
    with pytest.raises(FormatError, match=r"x\.a\.samples: cannot be read"):
        ran(made._replace(path=Path("x.json")))
