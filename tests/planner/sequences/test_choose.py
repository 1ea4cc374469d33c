"""Ways that are tried for a task with lengths: other orders of passes where stages wait."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import synthetic
from support.texts import text_task

from planner import Problem, build
from planner.estimate import Spec, estimate
from planner.inputs import Effort, Kind, parse_layout
from planner.packing.asked import Asked
from planner.sequences import choose
from plans import prove_tables, save
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")

LENGTHS = np.random.default_rng(0).integers(500, 1_000, 64).astype(np.uint32)


def built(folder: Path) -> Plan:
    """A pipeline of four stages with few microbatches, so that stages wait for one another."""
    profile = estimate(Spec("gpt2", "4090", 8, steps=4), lengths=LENGTHS)
    one = Problem.of(profile, devices=4, device_bytes=None, host_bytes=None)
    one = replace(one, layout=parse_layout("4x1"), packing="ffd", lengths={"gpt2": LENGTHS})
    plan = build(one, profile_sha256="0" * 64, seconds=600, output=folder / "plan.json")
    save(folder / "plan.json", plan)
    prove_tables(plan, folder / "plan.json", {"gpt2": LENGTHS})
    return plan


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


def test_ways_are_judged_by_whole_windows() -> None:
    """Of some steps, spread over all."""
    task = text_task(lengths=LENGTHS, batch=4, steps=200)
    kind = Kind.of("cpu", synthetic.profile(task, usable_bytes=1 << 30), 1, None)
    asked = Asked(task, LENGTHS, kind, 1 << 40, window=3, layout=parse_layout("1x1"), hows=("ffd",))
    few = choose._Search(asked, Effort(0, 0)).few
    windows = {step // 3 for step in few}
    assert few == [step for step in range(200) if step // 3 in windows]
    assert (len(windows), min(windows), max(windows)) == (16, 0, 66)
