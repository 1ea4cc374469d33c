"""Samples of every length: what data may give, and microbatches of several sequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from executor.errors import RunError, WorkloadError
from executor.workload import Evaluation, Task, pack, padding, take
from executor.workload.task import checked

LENGTHS = [3, 1, 5, 2]


def _data(samples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Sample n has tokens 10 n + 1, 10 n + 2, ..., and as targets those plus one."""
    rows = [10 * n + 1 + torch.arange(LENGTHS[n]) for n in samples]
    return [(row, row + 1) for row in rows]


TASK = Task(
    name="text",
    model=nn.Identity,
    data=_data,
    loss=F.mse_loss,
    optimizer=lambda parameters: SGD(parameters, lr=0.1),
    steps=2,
    lengths=LENGTHS,
    batch=2,
)


def test_padding_has_the_form_of_a_sample() -> None:
    """Dicts, further dimensions and dtypes; 0 for targets that are no signed integers."""
    sample = ({"a": torch.ones(2, 3), "b": torch.ones(2)}, (torch.ones(2, 4), torch.ones(2).byte()))
    task = replace(TASK, data=lambda samples: [sample for _ in samples], lengths=[2, 2])
    taken = take(task, [0, 1])
    made = padding(taken[0], 3)
    assert made.size == 3
    inputs, targets = pack(task, [taken[0], made, taken[1]])
    assert {name: list(x.shape) for name, x in inputs.items()} == {
        "a": [7, 3],
        "b": [7],
        "position_ids": [7],
        "sequence_ids": [7],
    }
    assert inputs["sequence_ids"].tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert [y.sum().item() for y in targets] == [16, 4]
    assert targets[1].dtype == torch.uint8


def test_samples_come_without_graphs() -> None:
    """Whatever made them is not trained."""
    task = replace(
        TASK,
        data=lambda samples: [
            (x, y * torch.ones(1, requires_grad=True)) for x, y in _data(samples)
        ],
    )
    assert not any(sample.targets.requires_grad for sample in take(task, [0, 1]))


def test_arguments_are_those_of_the_task() -> None:
    """A function of the user's makes them, and a tuple is continued otherwise."""
    task = replace(TASK, arguments=lambda x, positions, sequences: {"x": x, "at": positions})
    assert set(pack(task, take(task, [0])).inputs) == {"x", "at"}
    pair = replace(TASK, data=lambda samples: [((x, x), x) for x, _ in _data(samples)])
    assert len(pack(pair, take(pair, [0])).inputs) == 4


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (lambda samples: _data(samples)[1:], "returned 1 samples, asked for were 2"),
        (lambda samples: None, "returned a NoneType, not a list"),
        (lambda samples: [x for x, _ in _data(samples)], "sample 2 is something else than a pair"),
        (lambda samples: _data([3, 3]), "sample 2 has 2 tokens, lengths say 5"),
        (
            lambda samples: [(x, y[1:]) for x, y in _data(samples)],
            "the targets of sample 2 have 4 tokens, lengths say 5",
        ),
        (
            lambda samples: [(x.float() if n else x, y) for n, (x, y) in enumerate(_data(samples))],
            r"sample 0 has tokens of float32\[\], int64\[\], sample 2 of int64\[\], int64\[\]",
        ),
    ],
)
def test_samples_that_are_not_as_said(data: Any, text: str) -> None:
    """One line that names the sample and both numbers."""
    with pytest.raises(RunError, match=f"^{text}"):
        take(replace(TASK, data=data), [2, 0])


def test_arguments_without_tokens_first_are_refused() -> None:
    """What has another size in every microbatch has no place in a timetable."""
    task = replace(TASK, arguments=lambda x, positions, sequences: (x, sequences.bincount()))
    with pytest.raises(RunError, match=r"of shape \[2\] for a microbatch of 5 tokens"):
        pack(task, take(task, [0, 3]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lengths": [3, 0]}, r"lengths\[1\] is 0; it must be a whole number from 1"),
        ({"lengths": np.array([3, -2])}, r"lengths\[1\] is -2; it must be a whole number from 1"),
        ({"lengths": [3.5, 1]}, "lengths is a list; it must be whole numbers"),
        ({"lengths": [[3], [1, 2]]}, "lengths is a list; it must be whole numbers"),
        ({"lengths": []}, "lengths is a list; it must be whole numbers"),
        ({"lengths": torch.ones(2, 2, dtype=torch.long)}, "lengths is a Tensor; it must be whole"),
        ({"lengths": [2**32, 1]}, r"lengths\[0\] is 4294967296; it must be a whole number"),
        ({"batch": 5}, "batch is 5; it must be a whole number from 1 to 4, the number of lengths"),
        ({"batch": None}, "batch is None; it must be a whole number from 1 to 4"),
        ({"weights": [1, 2]}, "weights is a list; it must be as many numbers as there are len"),
        ({"weights": [1, 2, float("nan"), 1]}, r"weights\[2\] is nan; it must be a finite number"),
        ({"weights": [1, 2, 1, -1]}, r"weights\[3\] is -1.0; it must be a finite number from 0"),
        ({"weights": [1, 2, 1, 0], "weight": len}, "weight is a .*; it must be left out beside we"),
        ({"arguments": 3}, "arguments is 3; it must be a function"),
        ({"loss": None}, "loss is None; it must be a function that gives the sum"),
        ({"evaluate": 3}, "evaluate is 3; it must be"),
        ({"lengths": None}, "batch is 2; it must be left out in a task without lengths"),
    ],
)
def test_settings_that_no_task_with_lengths_can_have(change: dict[str, Any], text: str) -> None:
    """One line that says which, and what it must be."""
    with pytest.raises(WorkloadError, match=f"^my.py:tasks: task text: {text}"):
        checked("my.py:tasks", [replace(TASK, **change)])


def test_lengths_may_be_what_users_have() -> None:
    """Lists, arrays, tensors and ranges; weights of any kind of number."""
    for lengths in (LENGTHS, np.array(LENGTHS, np.uint16), torch.tensor(LENGTHS), range(1, 5)):
        task = replace(TASK, lengths=lengths, weights=[0.5, 1, 2, 3])
        assert checked("my.py:tasks", [task]) == [task]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batches": 2}, "evaluate.batches is 2; it must be left out in a task with lengths"),
        ({"lengths": None}, "evaluate.lengths is None; it must be whole numbers"),
        ({"lengths": [3, 0]}, r"evaluate.lengths\[1\] is 0; it must be a whole number from 1"),
        ({"weights": [1]}, "evaluate.weights is a list; it must be as many numbers as there are"),
        ({"weights": [1, -1]}, r"evaluate.weights\[1\] is -1.0; it must be a finite number from"),
        ({"data": None}, "evaluate.data is None; it must be a function that gives the same batch"),
    ],
)
def test_evaluations_that_a_task_with_lengths_cannot_have(
    change: dict[str, Any], text: str
) -> None:
    """One line with the name of the setting."""
    own = Evaluation(1, _data, lengths=[3, 1])
    assert checked("my.py:tasks", [replace(TASK, evaluate=own)])
    with pytest.raises(WorkloadError, match=f"my.py:tasks: task text: {text}"):
        checked("my.py:tasks", [replace(TASK, evaluate=replace(own, **change))])


def test_lengths_of_an_evaluation_belong_to_a_task_with_lengths() -> None:
    """Others have batches."""
    plain = replace(TASK, lengths=None, batch=None)
    for own, text in (
        (Evaluation(1, _data, lengths=[3]), "evaluate.batches is None; it must be a whole number"),
        (Evaluation(1, _data, 2, lengths=[3]), "evaluate.lengths is a list; it must be left out"),
    ):
        with pytest.raises(WorkloadError, match=text):
            checked("my.py:tasks", [replace(plain, evaluate=own)])
