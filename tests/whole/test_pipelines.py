"""Tasks on several devices, as the planner plans them: their bits are those of a plain loop that
adds gradients as they do."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.pipeline_cases import CASES, JUDGED, Case, built, profiled
from support.plain import train
from support.quick import quickly
from support.same import added_as, assert_same, goes_on

from executor import run
from planner.inputs import parse_layout


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_are_those_of_a_plain_loop(case: Case) -> None:
    """In every order, with replicas of some stages or all, with little memory and with enough."""
    with quickly():
        plan = built(profiled(case), case)
    (program,) = plan.programs
    assert program.devices == parse_layout(case.layout).devices
    assert_same(plan, [case.task], run(plan, [case.task]), added_as(plan))


def test_an_evaluation_leaves_training_alone() -> None:
    """Its losses are those of a plain loop as well."""
    with quickly():
        plan = built(profiled(JUDGED), JUDGED)
    result = run(plan, [JUDGED.task])
    assert_same(plan, [JUDGED.task], result)
    assert result.val_losses["a"] == train(JUDGED.task, 2).val_losses


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """One step on the smallest devices, and the others from there: the bits of one loop."""
    case = Case("1,2", "1f1b", clip=0.1, least=True)
    with quickly():
        plan = built(profiled(case), case)
    goes_on(plan, [case.task], tmp_path, added_as(plan))
