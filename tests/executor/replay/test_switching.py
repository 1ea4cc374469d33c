"""A run of two mixes of pipelines trains what a plain loop does, and goes on between segments."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.same import step_in
from support.switched import switched
from support.texted import BATCH, Packed, data, one_by_one, trained
from torch import Tensor

from executor import run
from executor.errors import InterruptedRun
from executor.records import Options, Result
from plans.order import Reached, rest

TURNS = ((1, 2), (0, 1), (1, 1), (0, 2))


def ran(made: Packed, **options: Any) -> Result:
    return run(made.plan, [made.task], Options(tables=made.path, **options))


def params(result: Result) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in result.model("a").named_parameters()}


@pytest.fixture(scope="module")
def made() -> Packed:
    return switched(TURNS)


@pytest.fixture(scope="module")
def whole(made: Packed) -> Result:
    return ran(made)


def test_two_mixes_in_turn_train_the_ordinary_loop(made: Packed, whole: Result) -> None:
    """Sequence by sequence without padding, within the rounding of sums."""
    expected = trained(made.task, one_by_one)
    torch.testing.assert_close(whole.losses["a"], expected.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(params(whole), expected.params, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("heard")
def test_a_run_goes_on_where_pipelines_change(made: Packed, whole: Result, tmp_path: Path) -> None:
    """Interrupted in its first segment, with the same bits."""
    pressed = False

    def pressing(samples: Sequence[int]) -> Any:
        nonlocal pressed
        if BATCH in samples and not pressed:
            pressed = True
            signal.raise_signal(signal.SIGINT)
        return data(samples)

    with pytest.raises(InterruptedRun):
        ran(made._replace(task=replace(made.task, data=pressing)), folder=tmp_path)
    done = step_in(tmp_path)
    assert 0 < done <= TURNS[0][1]
    left = made._replace(plan=rest(made.plan, Reached({"a": done})))
    result = ran(left, folder=tmp_path)
    assert result.losses["a"] == whole.losses["a"][done:]
    assert all(torch.equal(p, params(whole)[name]) for name, p in params(result).items())
