"""Ways that are tried for a task with lengths: other orders of passes where stages wait."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import texts

from planner import Problem
from planner.estimate import Spec, estimate
from planner.inputs import parse_layout
from planner.sequences import choose
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")

LENGTHS = np.random.default_rng(0).integers(500, 1_000, 64).astype(np.uint32)


def built(folder: Path) -> Plan:
    """A pipeline of four stages with few microbatches, so that stages wait for one another."""
    profile = estimate(Spec("gpt2", "4090", 8, steps=4), lengths=LENGTHS)
    one = Problem.of(profile, devices=4, device_bytes=None, host_bytes=None)
    one = replace(one, layout=parse_layout("4x1"), packing="ffd", lengths={"gpt2": LENGTHS})
    return texts.built(one, folder, seconds=600)


def orders(plan: Plan) -> list[str]:
    """The orders that were tried, that of the plan first."""
    return [one.order.partition(",")[0] for one in plan.solver.alternatives]


def test_passes_in_another_order_are_taken_where_steps_are_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a twentieth at least, against the same search of one order alone."""
    plan = built(tmp_path)
    assert {"1f1b", "interleaved", "zero-bubble"} <= {*orders(plan)}
    assert orders(plan)[0] != "1f1b"
    monkeypatch.setattr(choose, "_REORDERED", 0)
    alone = built(tmp_path)
    assert {*orders(alone)} == {"1f1b"}
    assert plan.prediction.makespan_us < 0.95 * alone.prediction.makespan_us
