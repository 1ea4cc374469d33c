"""Dropout where samples have lengths: from the model to a trained one, bit for bit."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from support.quick import ROOM, measured
from support.searches import SHORT
from support.tokens import LENGTHS, WIDTH, Embedding, Pair, data, stacked, summed, task
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

    rows = open_table(table_path(output, "toy"), BATCH)
    assert rows.max() == BATCH - 1
    torch.manual_seed(3)
    trained = model()
    optimizer = slowly(trained.parameters())
    for step in range(STEPS):
        samples = np.arange(step * BATCH, (step + 1) * BATCH) % len(LENGTHS)
        for m in range(int(rows[step].max()) + 1):
            texts, targets = zip(*data(samples[rows[step] == m].tolist()), strict=True)
            sizes = [len(text) for text in texts]
            given = stacked(
                torch.cat(texts),
                torch.cat([torch.arange(n) for n in sizes]),
                torch.cat([torch.full((n,), k) for k, n in enumerate(sizes)]),
            )
            loss = summed(trained(given), torch.cat(targets))
            (loss / sum(LENGTHS[n] for n in samples)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = dict(result.model("toy").named_parameters())
    assert all(torch.equal(p, found[name]) for name, p in trained.named_parameters())
