"""The promise as one assertion: a run trained, bit for bit, what the plain loop trains."""

from collections.abc import Callable, Sequence

import torch
from support.plain import Plain, train

from executor.driver import Result
from executor.workload.task import Task
from plans.schema import Plan


def assert_same(
    plan: Plan,
    tasks: Sequence[Task],
    result: Result,
    oracle: Callable[[Task, int], Plain] = train,
) -> None:
    """Losses, parameters, optimizer state and buffers are bit for bit those of the plain loop."""
    for planned, task in zip(plan.tasks, tasks, strict=True):
        plain = oracle(task, planned.microbatches)
        assert result.losses[task.name] == plain.losses
        for name, parameter in result.model(task.name).named_parameters():
            assert torch.equal(parameter, plain.params[name]), name
        for name, buffer in result.model(task.name).named_buffers():
            assert torch.equal(buffer, plain.buffers[name]), name
        state = result.optimizer_state(task.name)
        for name, values in plain.state.items():
            assert values.keys() == state.get(name, {}).keys(), name
            for key, value in values.items():
                same = torch.equal(state[name][key], value) if value is not None else True
                assert same, (name, key)


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
