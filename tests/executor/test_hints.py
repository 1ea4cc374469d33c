"""What the profiler says a workload could do better."""

from functools import partial
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from executor.hints import hint
from profiles import synthetic
from profiles.schema import Layer, Time


def layers(update_us: int) -> list[Layer]:
    """One layer with such an update, beside 10 ms of computing."""
    (layer,) = synthetic.task("a", layers=1, seed=0, steps=1).layers
    cost = structs.replace(layer.costs[-1], recompute_backward=_time(10_000))
    return [structs.replace(layer, update_host=_time(update_us), costs=(cost,))]


def _time(us: int) -> Time:
    return Time(us, us, us, 1)


def made(kind: Any, **options: Any) -> Optimizer:
    optimizer: Optimizer = kind([nn.Parameter(torch.zeros(2))], **options)
    return optimizer


@pytest.mark.parametrize("kind", [AdamW, Adagrad, partial(AdamW, foreach=True)])
def test_slow_updates_are_told(kind: Any) -> None:
    """With the task's name and what to write."""
    said = hint("gpt", made(kind), layers(4_000))
    assert said.startswith("hint: task gpt: its updates take 4.0 ms on the host beside 10.0 ms")
    assert "(..., fused=True)" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("optimizer", "update_us"),
    [(made(AdamW, fused=True), 4_000), (made(SGD), 4_000), (made(AdamW), 900)],
    ids=["fused", "little to gain", "fast"],
)
def test_other_updates_are_not(optimizer: Optimizer, update_us: int) -> None:
    """Those that are fused, would gain little or take no time to speak of."""
    assert hint("gpt", optimizer, layers(update_us)) == ""
