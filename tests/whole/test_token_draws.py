"""Dropout where samples have lengths: from the model to a trained one, bit for bit."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from support.quick import ROOM, measured
from support.searches import SHORT
from support.small_texts import groups
from support.texted import joined, trained
from support.tokens import LENGTHS, WIDTH, Embedding, Pair, data, stacked, task
from torch import nn
from torch.optim import SGD

import plans
from executor import run
from executor.records import Options
from planner import Problem, build
from planner.inputs import parse_layout
from plans.samples import open_table, table_path

pytestmark = pytest.mark.usefixtures("quick", "untimed")

BATCH, STEPS = 4, 3


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, pair: Pair) -> Pair:
        return pair[0] + self.dropout(self.linear(pair[0])), pair[1]


def model() -> nn.Sequential:
    return nn.Sequential(Embedding(), Dropping(), Dropping(), Dropping())


def slowly(parameters: Iterable[nn.Parameter]) -> SGD:
    return SGD(parameters, lr=1e-2)


@pytest.mark.parametrize("layout", ["1x1", "2x1"])
def test_a_plan_drops_what_a_loop_over_its_microbatches_drops(layout: str, tmp_path: Path) -> None:
    """On one device and as a pipeline of two, as profiled and planned."""
    made = replace(task(batch=BATCH), model=model, optimizer=slowly, steps=STEPS, seed=3)
    devices = parse_layout(layout).devices
    profile = measured(made, 1)
    (one,) = profile.tasks
    apart = structs.replace(one.lengths, why_not="several microbatches are wanted")
    profile = structs.replace(profile, tasks=(structs.replace(one, lengths=apart),))
    asked = Problem.of(profile, devices=devices, device_bytes=ROOM, host_bytes=None)
    asked = replace(asked, lengths={"toy": np.array(LENGTHS, np.uint32)})
    asked, output = replace(asked, layout=parse_layout(layout)), tmp_path / "plan.json"
    plan = build(asked, profile_sha256="0" * 64, limits=SHORT, output=output)
    plans.save(output, plan)
    result = run(plan, [made], Options(tables=output))

    rows = open_table(table_path(output, "toy"), BATCH).tolist()
    assert max(map(max, rows)) == BATCH - 1

    def of(step: int) -> list[int]:
        return [n % len(LENGTHS) for n in range(step * BATCH, (step + 1) * BATCH)]

    def parts(step: int) -> Iterator[Any]:
        for own in groups(rows[step], of(step)):
            for *inputs, targets in joined(data(own)):
                yield stacked(*inputs), targets

    plain = trained(replace(made, weights=LENGTHS), parts, of)  # type: ignore[arg-type]
    found = dict(result.model("toy").named_parameters())
    assert all(torch.equal(value, found[name]) for name, value in plain.params.items())
