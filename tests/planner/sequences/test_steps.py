"""Every step of a plan of samples with lengths: its time, and its bound."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from planner.inputs import PackingName, parse_layout
from planner.sequences import Asked, Step, steps_of
from plans.samples import open_table, table_path
from plans.schema import Plan
from plans.timing import kind_rounds, kinds_of
from tests.planner.sequences.test_planned import BATCH, LENGTHS, LITTLE, STEPS, asked, built

pytestmark = pytest.mark.usefixtures("quick")


def _steps(plan: Plan, folder: Path) -> list[Step]:
    problem = asked()
    one = Asked(problem.tasks[0], LENGTHS, problem.only, 0, plan.tasks[0].done)
    table = open_table(table_path(folder / "plan.json", "text"), BATCH)
    return list(steps_of(plan, one, table))


@pytest.mark.parametrize("packing", ["pad", "balanced"])
def test_steps_take_together_what_the_ops_of_their_kinds_do(
    packing: PackingName, tmp_path: Path
) -> None:
    """On one device: ops take what they do in the mean of the steps of a kind."""
    plan = built(asked(devices=1, packing=packing), tmp_path)
    (program,) = plan.programs
    ops_us = 0
    for kind, rounds in zip(kinds_of(program), kind_rounds(plan, program), strict=True):
        passes = (op for op in kind.ops if op.name.kind in "FB")
        ops_us += rounds * sum(op.end_us - op.start_us for op in passes)
    found = _steps(plan, tmp_path)
    assert sum(one.us for one in found) == pytest.approx(ops_us, rel=2e-3)


def test_a_step_is_told_with_its_samples_and_a_bound(tmp_path: Path) -> None:
    """On a pipeline of two stages beside one of one: steps in turn, each with the samples that it
    has, none below its bound."""
    found = _steps(built(asked(LITTLE, devices=3, packing="balanced"), tmp_path), tmp_path)
    assert [one.step for one in found] == list(range(STEPS))
    for one in found:
        own = LENGTHS[(one.step * BATCH + np.arange(BATCH)) % len(LENGTHS)]
        assert (one.samples, one.longest, one.tokens) == (BATCH, own.max(), own.sum())
        assert one.us / 2 < one.bound_us <= one.us
        assert one.gap == 1 - one.bound_us / one.us
    assert sum(one.gap for one in found) / STEPS < 0.15


def test_a_task_that_goes_on_has_the_samples_of_its_steps(tmp_path: Path) -> None:
    """Those that come after what was trained before."""
    problem = replace(asked(devices=1, packing="ffd"), done={"text": 5})
    found = _steps(built(problem, tmp_path), tmp_path)
    assert [one.step for one in found] == [*range(5, 5 + STEPS)]
    for one in found:
        assert one.tokens == LENGTHS[(one.step * BATCH + np.arange(BATCH)) % len(LENGTHS)].sum()


def test_another_place_makes_a_step_longer(tmp_path: Path) -> None:
    """All samples in the first microbatch: one pipeline computes all of them."""
    problem = asked(devices=2, packing="balanced")
    plan = built(replace(problem, layout=parse_layout("1x2")), tmp_path)
    path = table_path(tmp_path / "plan.json", "text")
    before = _steps(plan, tmp_path)[0]
    np.zeros((STEPS, BATCH), "<u2").tofile(path)
    after = _steps(structs.replace(plan), tmp_path)[0]
    assert after.us > 1.5 * before.us
    assert before.bound_us == pytest.approx(after.bound_us, rel=0.01)
