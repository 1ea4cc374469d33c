"""Tasks on several devices, as the planner plans them: their bits are those of a plain loop that
adds gradients as they do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from support.pipeline_cases import CASES, Case, built, counting, profiled
from support.plain import Plain, Share, Shares, train
from support.quick import measured, quickly
from support.same import assert_same, goes_on
from support.toys import batches

from executor import run
from executor.workload.task import Evaluation, Task
from planner.inputs import parse_layout
from plans.schema import Plan


def oracle(plan: Plan) -> Callable[[Task, int], Plain]:
    """A plain loop that adds the gradients of replicas as the plan does."""
    return lambda task, count: train(task, count, shares=shares_of(plan, task))


def shares_of(plan: Plan, task: Task) -> Shares:
    """For every parameter the microbatches of each replica of its shard, by their first ones, and
    in halves of these."""
    (planned,) = plan.tasks
    found: dict[int, dict[str, list[int]]] = {}
    for op in plan.programs[0].round:
        name, device = op.name, op.stream.partition(".")[0]
        if name.item == "s" and name.kind in "BW":
            found.setdefault(name.number, {}).setdefault(device, []).append(name.index)
    assert callable(task.model)
    shares = {}
    for name, parameter in task.model().named_parameters():
        layer = int(name.partition(".")[0])
        k = next(k for k, shard in enumerate(planned.shards) if layer < shard.end_layer)
        each = [sorted(own) for own in found.get(k, {}).values()]
        shares[name] = halves(sorted(each)) if parameter.requires_grad else []
    return shares


def halves(parts: list[list[int]]) -> Sequence[Share]:
    """The first 1, 2, 4, ... parts and the others, each added in the same way before."""
    if len(parts) < 2:
        return parts
    first = max(n for n in (1, 2, 4, 8) if n < len(parts))
    return [halves(parts[:first]), halves(parts[first:])]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_are_those_of_a_plain_loop(case: Case) -> None:
    """In every order, with replicas of some stages or all, with little memory and with enough."""
    with quickly():
        plan = built(profiled(case), case)
    (program,) = plan.programs
    assert program.devices == parse_layout(case.layout).devices
    assert_same(plan, [case.task], run(plan, [case.task]), oracle(plan))


def held_out(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batches(1000 + number)


def test_an_evaluation_leaves_training_alone() -> None:
    """Its losses are those of a plain loop as well."""
    case = Case("2x1", "1f1b", counting, microbatches=2)
    task = replace(case.task, evaluate=Evaluation(every=2, data=held_out, batches=2))
    with quickly():
        plan = built(measured(task, 2), case)
    result = run(plan, [task])
    assert_same(plan, [task], result)
    assert result.val_losses["a"] == train(task, 2).val_losses


@pytest.mark.parametrize("layout", ["2x1", "1,2"])
def test_a_run_goes_on_from_a_checkpoint(layout: str, tmp_path: Path) -> None:
    """One step on the smallest devices, and the others from there: the bits of one loop."""
    case = Case(layout, "1f1b", clip=0.1, least=True)
    with quickly():
        plan = built(profiled(case), case)
    goes_on(plan, [case.task], tmp_path, oracle(plan))
