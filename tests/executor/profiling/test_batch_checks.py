"""What would differ from batch to batch in a run is told when a task is profiled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import lab
from support.cli import executor_cli, refused, succeeded
from support.lab import WIDTH, linear, rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from executor.errors import WorkloadError
from executor.profiling.batch_checks import batches_of, check_evaluation, steps_tried
from executor.profiling.layer_checks import batch
from executor.workload.task import Evaluation, Task
from profiles import load

pytestmark = pytest.mark.usefixtures("untimed")

LONG = 5
MACHINE = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1)


def random(step: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step))


def task(model: Callable[[], nn.Module], data: Callable[[int], Any] = rows) -> Task:
    return lab.task(model, data, 40)


class Masked(nn.Module):
    """Makes a mask only where there is something to hide, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(linear() for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        whole = bool(mask.all())
        for block in self.blocks:
            x = block(x if whole else x * mask[:, None])
        return x


def masks(full: Callable[[int, int], bool]) -> Callable[[int], Any]:
    """Batches of four samples; `full` by step and sample: nothing is hidden of it."""

    def data(step: int) -> Any:
        mask = torch.tensor([full(step, sample) for sample in range(4)])
        return (random(step, 4, WIDTH), mask), random(step + 1, 4, WIDTH)

    return data


class Packed(nn.Module):
    """Draws as often as there are steps in all sequences together."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(WIDTH, WIDTH, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.cells(packed)[0], True, total_length=LONG)[0]


def sequences(step: int) -> Any:
    lengths = torch.randint(1, LONG + 1, (4,), generator=torch.Generator().manual_seed(step))
    return (random(step, 4, LONG, WIDTH), lengths), random(step, 4, LONG, WIDTH)


def always(step: int, sample: int) -> bool:
    return step != 2


def some() -> list[Task]:
    one = task(Masked, masks(always))
    return [one]


def single() -> list[Task]:
    return [task(Masked, masks(lambda step, sample: sample == 3))]


def packed() -> list[Task]:
    return [task(Packed, sequences)]


def dropped() -> list[Task]:
    def model() -> nn.Module:
        return nn.Sequential(linear(), *(Skipping() for _ in range(4)))

    return [task(model)]


class Skipping(nn.Module):
    """A layer with layerdrop: what it draws depends on what it has drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return F.dropout(y) if torch.rand(()) < 0.5 else y


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 10, 100, 10**6])
def test_first_and_last_steps_are_tried_and_some_between(steps: int) -> None:
    """Each time the same, and none that is not."""
    tried = steps_tried(steps)
    assert tried == steps_tried(steps) == sorted(set(tried))
    assert {0, min(2, steps - 1), steps - 1} <= set(tried) <= set(range(steps))
    assert len(tried) == min(steps, 6) or steps < 6


def late(change: Callable[[Tensor], Any]) -> Callable[[int], Any]:
    """Good batches but for the last of 40."""
    return lambda step: change(rows(step)[0]) if step == 39 else rows(step)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: (x[:3], x[:3]), r"data\(39\): inputs was \[4, 8\] and is now \[3, 8\]"),
        (lambda x: (x[:, :4], x), r"data\(39\): inputs was \[4, 8\] and is now \[4, 4\]"),
        (lambda x: (x.double(), x), r"data\(39\): inputs was Spec"),
        (lambda x: None, r"data\(39\): returned None: there is no batch of step 39"),
        (lambda x: 1 // 0, r"data\(39\): ZeroDivisionError"),
    ],
)
def test_a_batch_of_another_form_is_told_with_its_step(change: Any, text: str) -> None:
    """And what to do about shapes, and which steps were looked at."""
    made = task(linear, late(change))
    with pytest.raises(WorkloadError, match=text) as caught:
        batches_of(made, batch(made))
    if "inputs was" in text:
        assert 'padding="max_length"' in str(caught.value)
        assert "tried: data(0), data(1), data(2), " in str(caught.value)


def test_data_that_takes_long_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may have to go through all before it is not waited for."""
    monkeypatch.setattr("executor.profiling.batch_checks._PATIENCE_S", 0.0)
    made = task(linear, late(lambda x: None))
    assert list(batches_of(made, batch(made))) == [0]


def test_a_mask_that_is_all_ones_in_some_batches_is_refused() -> None:
    """In the profile, with the step and what a Hugging Face user can do."""
    answer = executor_cli("profile", f"{__file__}:some", *MACHINE, "-o", "never.json")
    text = "data(2): before blocks.0: the model's own code goes by a value that is False and was"
    refused(answer, 2, text)
    assert "attention_mask" in answer.err
    assert "tried: data(0), data(1), data(2)" in answer.err


def test_microbatches_that_go_another_way_are_left_out(tmp_path: Any) -> None:
    """A sample that fills its row is alone only in microbatches of one."""
    target = tmp_path / "profile.json"
    made = ("profile", f"{__file__}:single", *MACHINE, "-o", target)
    answer = succeeded(executor_cli(*made))
    assert "note: task a: microbatches of 1 are left out; samples 3 to 3: " in answer.err
    costs = load(target).tasks[0].layers[0].costs
    assert [cost.microbatch for cost in costs] == [2, 4]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            lambda n: tuple(x[: 4 - n] for x in rows(n)),
            r"data\(1\): returned 3 samples, and training",
        ),
        (
            lambda n: tuple(x.repeat(1, 1 + 8 * n) for x in rows(n)),
            r"data\(1\): returned 2560 bytes",
        ),
        ([rows(0)].__getitem__, r"data\(1\): IndexError: .* an evaluation has 2"),
    ],
)
def test_an_evaluation_of_another_size_is_refused(data: Any, text: str) -> None:
    """Its last batch is looked at as well as its first."""
    made = replace(task(linear), evaluate=Evaluation(10, data, 2))
    with pytest.raises(WorkloadError, match=f"task a: evaluation {text}"):
        check_evaluation(made, batch(made))


@pytest.mark.parametrize("name", ["packed", "dropped"])
def test_draws_that_vary_are_told_and_allow_one_microbatch(name: str, tmp_path: Any) -> None:
    """Whether from batch to batch, from sample to sample or by chance."""
    target = tmp_path / "profile.json"
    answer = succeeded(executor_cli("profile", f"{__file__}:{name}", *MACHINE, "-o", target))
    assert "random numbers, so its batches run in one microbatch only" in answer.err
    assert "padded input instead of a packed sequence" in answer.err
    draws = {c.rng_draws for layer in load(target).tasks[0].layers for c in layer.costs}
    assert None in draws
