"""Samples of every length: a run trains and evaluates as loops without Gantry do, however samples
are packed, in any precision, clipped, moved within windows, and gone on with."""

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec import structs
from support.judged import EVERY, HELD, held, held_alone, held_packed, judged
from support.same import step_in
from support.switched import switched
from support.texted import (
    BATCH,
    LENGTHS,
    MADE,
    MOST,
    SAMPLES,
    VOCABULARY,
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
from executor.errors import InterruptedRun, MismatchError, RunError, WorkloadError
from executor.records import Options, Result
from executor.workload import Batch, Ending, planned_shapes, steps_of
from plans.order import Reached, rest
from profiles.errors import FormatError

KINDS = ((MOST, MOST), (MOST,), (256, 256))
EVERY_STEP = ((0, 1), (1, 1), (2, 1), (0, 1))
IN_A_ROW = ((2, 2), (1, 1), (0, 2))
TURNS = ((1, 2), (0, 1), (1, 1))  # of two mixes of pipelines
RUNS = ((0, 2), (1, 1), (0, 1))
MANY = ((256,) * 12, (256,) * 5, (MOST,) * 3)


def ran(made: Packed, **options: Any) -> Result:
    return run(made.plan, [made.task], Options(tables=made.path, **options))


def params(result: Result) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in result.model("a").named_parameters()}


def assert_same(result: Result, expected: Trained, *, rtol: float = 0.0) -> None:
    """To the last bit, or within the rounding of sums."""
    torch.testing.assert_close(result.losses["a"], expected.losses, rtol=rtol, atol=0)
    torch.testing.assert_close(params(result), expected.params, rtol=rtol, atol=1e-6 * rtol)
    found = result.val_losses.get("a", {})
    torch.testing.assert_close(found, expected.val_losses, rtol=rtol, atol=0)


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 40 * F.cross_entropy(outputs, targets, reduction="sum")


class Case(NamedTuple):
    """window: samples are moved within so many steps. evaluates: on samples of every length. more:
    fields of the task."""

    name: str
    more: dict[str, Any] = {}
    runs: tuple[tuple[int, int], ...] = EVERY_STEP
    kinds: tuple[tuple[int, ...], ...] = KINDS
    window: int = 0
    evaluates: bool = False

    @property
    def made(self) -> Packed:
        more = dict(self.more)
        if "precision" in more:
            layers = MADE[self.name]().tasks[0].shards[-1].end_layer
            more |= {"model": partial(Text, layers, dtype=torch.float32), "loss": loud}
        made = (judged if self.evaluates else packed)(self.name, self.kinds, self.runs, **more)
        return moved(made, self.window) if self.window else made


CASES = [
    Case("streamed", {"weights": [n % 3 + 0.5 for n in LENGTHS]}),
    Case("streamed", {"precision": "bf16"}, IN_A_ROW),
    Case("packed", {"dropout": 0.3, "padded": True}, IN_A_ROW),
    Case("packed", {"precision": "bf16-autocast"}),
    Case("saved", {"dropout": 0.3}, IN_A_ROW),
    Case("saved", {"judged_weights": [n % 3 + 0.5 for n in HELD]}, IN_A_ROW, evaluates=True),
    Case("halves", {"dropout": 0.3}),
    Case("pipeline", {"dropout": 0.3}, window=4, evaluates=True),
    Case("pipeline", {}, IN_A_ROW, window=6),
    Case("norms-host", {"precision": "fp16-autocast", "clip": 0.2}),
    Case("norms-devices", {"precision": "bf16", "clip": 0.2}),
    Case("norms-device", {"clip": 0.2}),
    Case("many", {}, ((0, 1), (1, 1), (2, 1)), MANY),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{'-'.join(case.more)}")
def test_any_packing_trains_the_ordinary_loop(case: Case) -> None:
    """To the last bit in the same microbatches, and where nothing is drawn or rounded, sequence by
    sequence without padding."""
    made = case.made
    result = ran(made)
    parts = partial(as_packed, made), made.of
    judge = partial(held_packed, made) if case.evaluates else tuple
    assert_same(result, trained(made.task, *parts, judged=judge))
    if not case.more.keys() & {"dropout", "precision"}:
        alone = held_alone if case.evaluates else tuple
        each = partial(one_by_one, of=made.of)
        assert_same(result, trained(made.task, each, made.of, judged=alone), rtol=1e-6)
    if case.more.get("precision") == "fp16-autocast":
        assert result.store.at_hand("a").loss_scale["scale"] < 1 << 15


@pytest.mark.parametrize("dropout", [0, 0.3])
def test_replicas_train_it_too(dropout: float) -> None:
    """Two devices with a microbatch each, one of them without samples in some step."""
    runs = ((0, 2), (1, 1), (0, 1))
    made = packed("parallel", ((MOST, MOST), (MOST, 256)), runs, dropout=dropout)
    rows = made.rows.copy()
    rows[1] = 1
    made = with_rows(made, rows)
    assert_same(ran(made), trained(made.task, partial(as_packed, made)), rtol=1e-6)


def test_mixes_of_pipelines_in_turn_train_it_too() -> None:
    """Two stages, and one beside one, each for some steps."""
    made = switched(TURNS)
    assert_same(ran(made), trained(made.task, one_by_one), rtol=1e-6)


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
        ("parallel", {"loss": averaged}),
        ("pipeline", {"weight": lambda sample: (sample[1] != -100).sum()}),
    ],
)
def test_targets_that_are_left_out_do_not_count(name: str, more: dict[str, Any]) -> None:
    """Of a whole step; a microbatch in which nothing counts adds nothing."""
    made = packed(name, ((MOST, MOST),), ((0, 3),), data=masked, **more)
    rows = np.array([[n % 3 == 0 for n in made.of(step)] for step in range(3)], np.uint16)
    expected = trained(
        replace(made.task, loss=partial(F.cross_entropy, reduction="sum")),
        partial(one_by_one, texts=masked),
    )
    assert_same(ran(with_rows(made, rows)), expected, rtol=1e-9)


def test_samples_that_count_nothing_have_no_loss() -> None:
    """Whatever they share a microbatch with; where none of a step counts the run ends."""
    made = packed("streamed", KINDS, EVERY_STEP, weights=[n % 3 for n in range(SAMPLES)])
    counted = partial(one_by_one, of=lambda step: [n for n in made.of(step) if n % 3])
    assert_same(ran(made), trained(made.task, counted), rtol=1e-7)
    nothing = replace(made.task, weights=[0] * SAMPLES)
    with pytest.raises(RunError, match="task a: step 0: data: the weights of all samples are 0"):
        ran(made._replace(task=nothing))


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
@pytest.mark.parametrize("mixed", [False, True])
def test_an_interrupted_run_goes_on_with_the_same_bits(mixed: bool, tmp_path: Path) -> None:
    """In the middle of kinds that change at every step, of the table, of a window, and of the
    random numbers; or in a segment of a mix of pipelines that another follows."""
    if mixed:
        made = switched(TURNS)
    else:
        made = moved(packed("streamed", KINDS, EVERY_STEP, dropout=0.3), 6)
    whole, pressed = ran(made), False

    def pressing(samples: Sequence[int]) -> Any:
        nonlocal pressed
        if made.of(2 - mixed)[0] in samples and not pressed:
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


def with_held(made: Packed, **change: Any) -> Packed:
    """The plan with a task that is evaluated otherwise."""
    assert made.task.evaluate
    return made._replace(task=replace(made.task, evaluate=replace(made.task.evaluate, **change)))


def test_targets_that_are_left_out_do_not_count_in_an_evaluation() -> None:
    """Loss and metrics are means over the others of all rounds, those of metrics exact."""
    made = judged("pipeline", KINDS, RUNS)
    made = with_held(made, data=partial(masked, texts=held), metrics={"right": right})
    alone = partial(one_by_one, 0, lambda step: [*range(len(HELD))], partial(masked, texts=held))
    expected, found = trained(made.task, one_by_one, judged=alone), ran(made)
    torch.testing.assert_close(found.val_losses["a"], expected.val_losses, rtol=1e-9, atol=0)
    assert found.metrics["a"] == expected.metrics


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each token whether it is the likeliest of the even ones or its successor."""
    return (outputs[:, ::2].argmax(-1) - targets).abs() < VOCABULARY // 4


def test_metrics_by_token_need_targets_that_say_which_count() -> None:
    """And a number for each token; one line says what there is."""
    batch = Batch(torch.zeros(4), torch.zeros(4))
    ending = Ending(F.mse_loss, {"mean": lambda y, targets: y}, by_token=True)
    with pytest.raises(WorkloadError, match="need targets of whole numbers, -100 where none"):
        ending.metrics_of(batch.inputs, batch)
    with pytest.raises(WorkloadError, match=r"metric mean gave a .* of \[4\], a number for each t"):
        ending.metrics_of(torch.zeros(3), batch)


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


@pytest.mark.parametrize("evaluates", [False, True])
def test_data_of_another_length_ends_the_run(evaluates: bool) -> None:
    """With the step, the sample and both numbers."""
    lengths, texts = (HELD, held) if evaluates else (LENGTHS, data)

    def longer(samples: Sequence[int]) -> Any:
        pairs = zip(samples, texts(samples), strict=True)
        return [(x[: len(x) - (n == 11)], y) for n, (x, y) in pairs]

    text = f"data: sample 11 has {lengths[11] - 1} tokens, lengths say {lengths[11]}"
    where = "evaluation" if evaluates else "step 2:"
    if evaluates:
        made = with_held(judged("resident", KINDS, RUNS), data=longer)
    else:
        made = packed("resident", KINDS, ((0, 4),), data=longer)
    with pytest.raises(RunError, match=f"task a: {where} {text}"):
        ran(made)


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
