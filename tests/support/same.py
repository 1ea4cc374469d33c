"""The promise as one assertion: a run trained, bit for bit, what the plain loop trains."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from support.fit import later
from support.plain import Plain, Share, Shares, train

from executor import run
from executor.driver import Options, Result
from executor.workload.task import Task
from plans.schema import Plan


def assert_same(
    plan: Plan,
    tasks: Sequence[Task],
    result: Result,
    oracle: Callable[[Task, int], Plain] = train,
    earlier: Sequence[Result] = (),
) -> None:
    """Losses, parameters, optimizer state and buffers are bit for bit those of the plain loop.
    earlier: the runs that this one goes on from."""
    for planned, task in zip(plan.tasks, tasks, strict=True):
        plain = oracle(task, planned.microbatches)
        losses = [loss for part in (*earlier, result) for loss in part.losses[task.name]]
        assert losses == plain.losses
        for name, parameter in result.model(task.name).named_parameters():
            assert torch.equal(parameter, plain.params[name]), name
        for name, buffer in result.model(task.name).named_buffers():
            assert torch.equal(buffer, plain.buffers[name]), name
        state = result.optimizer_state(task.name)
        for name, values in plain.state.items():
            assert values.keys() == state.get(name, {}).keys(), name
            for key, value in values.items():
                assert value is None or same(state[name][key], value), (name, key)


def assert_saved(file: str | Path, plain: Plain) -> None:
    """The file of a trained task has the parameters and buffers of the plain loop."""
    saved, values = torch.load(file)["model"], plain.params | plain.buffers
    for name in plain.saved & values.keys():
        assert torch.equal(saved[name], values[name]), name


def added_as(plan: Plan) -> Callable[[Task, int], Plain]:
    """A plain loop that adds the gradients of replicas as the plan does."""
    return lambda task, count: train(task, count, shares=shares_of(plan, task))


def shares_of(plan: Plan, task: Task) -> Shares:
    """For every parameter the microbatches of each replica of its shard, by their first ones, and
    in halves of these."""
    (planned,) = [one for one in plan.tasks if one.name == task.name]
    program = next(program for program in plan.programs if task.name in program.tasks)
    found: dict[int, dict[str, list[int]]] = {}
    for op in program.round:
        name, device = op.name, op.stream.partition(".")[0]
        if name.task == task.name and name.item == "s" and name.kind in "BW":
            found.setdefault(name.number, {}).setdefault(device, []).append(name.index)
    assert callable(task.model)
    shares = {}
    for name, parameter in task.model().named_parameters():
        layer = int(name.partition(".")[0])
        k = next(k for k, shard in enumerate(planned.shards) if layer < shard.end_layer)
        each = [sorted(own) for own in found.get(k, {}).values()]
        shares[name] = _halves(sorted(each)) if parameter.requires_grad else []
    return shares


def _halves(parts: list[list[int]]) -> Sequence[Share]:
    """The first 1, 2, 4, ... parts and the others, each added in the same way before."""
    if len(parts) < 2:
        return parts
    first = max(n for n in (1, 2, 4, 8) if n < len(parts))
    return [_halves(parts[:first]), _halves(parts[first:])]


def goes_on(
    plan: Plan,
    tasks: Sequence[Task],
    folder: Path,
    oracle: Callable[[Task, int], Plain] = train,
    *,
    other: Plan | None = None,
    step: int = 1,
) -> None:
    """A few steps in a folder, and the others from there, maybe by another plan, have the bits of
    one plain loop."""
    first = run(later(plan, 0, step), tasks, Options(folder=folder))
    rest = later(other or plan, step, tasks[0].steps - step)
    assert_same(plan, tasks, run(rest, tasks, Options(folder=folder)), oracle, [first])


def step_in(folder: Path, task: str = "a") -> int:
    """The steps that the task's state in a run's folder is of."""
    return int(torch.load(folder / f"{task}.pt")["step"])


def same(one: object, two: object) -> bool:
    """True if two values hold the same bits, also in what they consist of."""
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        assert isinstance(two, dict)
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple):
        assert isinstance(two, list | tuple)
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return one == two
