"""Tasks without bf16 parameters on the host: what is kept, restored, handed out and refused."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec import structs
from support.chains import tasks_for
from support.disked import DISKED, swapping, together
from support.fit import fit, later
from support.handmade import CASTING, streamed
from support.plain import train
from support.rewrites import casting
from support.same import assert_same
from torch import nn
from torch.optim import AdamW

import plans
from executor import run
from executor.driver import Options
from executor.errors import MismatchError
from executor.workload.task import Task
from plans.order import kept_bytes
from plans.schema import Plan

FUSED = partial(AdamW, lr=1e-2, fused=True)


def low(made: Plan) -> list[Task]:
    return [replace(task, precision="bf16", optimizer=FUSED) for task in tasks_for(made)]


def test_checkpoints_are_those_of_a_run_with_parameters_on_the_host(tmp_path: Path) -> None:
    """Every tensor of the file is equal, and each of the two ways goes on from the other."""
    plain, tasks = streamed(), low(streamed())
    ways = {"with": fit(plain, tasks), "without": fit(casting(plain), tasks)}
    saved = {}
    for name, plan in ways.items():
        run(later(plan, 0, 1), tasks, Options(folder=tmp_path / name))
        saved[name] = torch.load(tmp_path / name / "a.pt", weights_only=True)
    one, other = saved.values()
    for key, value in one["model"].items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, other["model"][key]), key
    for key, state in one["optimizer"].items():
        assert all(torch.equal(v, other["optimizer"][key][k]) for k, v in state.items()), key
    oracle = train(tasks[0], plain.tasks[0].microbatches)
    for name, source in (("with", "without"), ("without", "with")):
        rest = later(ways[name], 1, tasks[0].steps - 1)
        result = run(rest, tasks, Options(folder=tmp_path / source))
        assert result.losses["a"] == oracle.losses[1:]
        for key, parameter in result.model("a").named_parameters():
            assert torch.equal(parameter, oracle.params[key]), key


def test_a_run_goes_on_after_its_own_checkpoints(tmp_path: Path) -> None:
    """A written state's memory is freed, and later steps give the bits of the plain loop."""
    made = CASTING["cast-moved"]()
    tasks = low(made)
    plan = fit(made, tasks)
    assert len(plan.segments) == 2
    assert_same(plan, tasks, run(plan, tasks, Options(folder=tmp_path)))


def test_the_model_that_is_handed_out_is_whole() -> None:
    """Its parameters have memory of their own, made once."""
    made = CASTING["cast-streamed"]()
    tasks = low(made)
    result = run(fit(made, tasks), tasks)
    held = result.store.tasks["a"]
    assert {p.untyped_storage().nbytes() for p in held.model.parameters()} == {2}
    before = list(result.model("a").parameters())
    with torch.no_grad():
        before[0].fill_(7)
    assert torch.equal(next(result.model("a").parameters()), before[0])


def test_states_alone_wait_on_the_disk(tmp_path: Path) -> None:
    """The store keeps no parameters, and the bits are those of the plain loop."""
    plan, rooms, reads, writes = DISKED["two-rooms"]()
    made = casting(plan)
    tasks = low(made)
    ready = swapping(together(fit(made, tasks), rooms), reads, writes)
    plans.prove(ready)
    assert_same(ready, tasks, run(ready, tasks, Options(folder=tmp_path)))
    size = sum(kept_bytes(task) for task in ready.tasks)
    assert size == sum(shard.state_bytes for task in ready.tasks for shard in task.shards)


def frozen(task: Task) -> Task:
    """The task with its first bias as it was made."""

    def model() -> nn.Module:
        made = task.model()
        next(p for n, p in made.named_parameters() if n.endswith("bias")).requires_grad_(False)
        return made

    return replace(task, model=model)


def test_a_parameter_without_a_master_is_refused() -> None:
    """A model that has frozen one since the plan was made ends with an error, not other bits."""
    made = CASTING["cast-streamed"]()
    (task,) = low(made)
    plan, other = fit(made, [task]), fit(made, [frozen(task)])
    (mine,), (theirs,) = plan.tasks, other.tasks
    pairs = zip(mine.shards, theirs.shards, strict=True)
    shards = tuple(structs.replace(a, grad_bytes=b.grad_bytes) for a, b in pairs)
    same_bytes = structs.replace(plan, tasks=(structs.replace(mine, shards=shards),))
    with pytest.raises(MismatchError, match=r"a\.s0: trained parameters: 4 in the plan, 3 in"):
        run(same_bytes, [frozen(task)])
