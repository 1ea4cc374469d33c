"""What was trained in two runs is what one run trains."""

from pathlib import Path

import pytest
import torch
from support import handmade
from support.chains import tasks_for
from support.fit import fit, later
from support.plain import train
from support.presses import press

import plans
from executor import run
from executor.driver import Options
from executor.errors import InterruptedRun, MismatchError
from plans import runlog


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("on", "step"), [("a", 1), ("b", 2), ("a", 3)])
def test_a_task_on_several_devices_goes_on_on_others(on: str, step: int, tmp_path: Path) -> None:
    """Interrupted beside one on a single device, in a segment of several: what is left of both is
    trained elsewhere, with the bits of a plain loop."""
    tasks = tasks_for(handmade.gang())
    plan = fit(handmade.gang(), tasks)
    with pytest.raises(InterruptedRun):
        run(plan, [press(on, step, t) for t in tasks], Options(folder=tmp_path))
    first = runlog.load(tmp_path)
    done = {line.task: line.step for line in first.checkpoints}
    left = {task.name: task.steps - done.get(task.name, 0) for task in plan.tasks}
    assert 0 < sum(left.values()) < 8
    rest = handmade.onwards(plan, done, {"a": (2, 1), "b": (0,)})
    plans.prove(rest)
    result = run(rest, tasks, Options(folder=tmp_path))
    for task in tasks:
        plain = train(task, 2)
        losses = [line.loss for line in first.steps if line.task == task.name]
        assert losses[: done.get(task.name, 0)] + result.losses.get(task.name, []) == plain.losses
        if left[task.name]:
            for name, parameter in result.model(task.name).named_parameters():
                assert torch.equal(parameter, plain.params[name]), name


@pytest.mark.parametrize("name", ["parallel", "pipeline"])
def test_a_log_says_how_several_devices_add(name: str, tmp_path: Path) -> None:
    """For a plan of the rest, which adds in the same order; where each layer has one device, as any
    plan does."""
    made = handmade.PLANS[name]()
    run(fit(made, tasks_for(made)), tasks_for(made), Options(folder=tmp_path))
    told = runlog.load(tmp_path).header.additions
    assert {task: [one.sum for one in own] for task, own in told.items()} == (
        {"a": ["(0)+(1)"]} if name == "parallel" else {}
    )


def test_another_kind_of_device_or_precision_is_refused(tmp_path: Path) -> None:
    """A checkpoint's random numbers and loss scale belong to the kind that made them."""
    tasks = tasks_for(handmade.resident())
    plan = fit(handmade.resident(), tasks)
    run(later(plan, 0, 1), tasks, Options(folder=tmp_path))
    whole = torch.load(tmp_path / "a.pt")
    torch.save(whole | {"rng": whole["rng"][:16].clone()}, tmp_path / "a.pt")
    with pytest.raises(MismatchError, match="has 16 bytes of random state, a device"):
        run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
    torch.save(whole | {"loss_scale": {"scale": torch.ones(1)}}, tmp_path / "a.pt")
    with pytest.raises(MismatchError, match="is fp32 in the plan, and the checkpoint has a loss"):
        run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
