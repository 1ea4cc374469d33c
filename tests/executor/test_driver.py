"""Replaying a plan trains exactly what an ordinary loop trains, in any order the plan allows."""

import gc
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import Batchwise, Irregular, tasks_for
from support.fit import fit
from support.same import assert_same

from executor import run
from executor.errors import RunError
from executor.shards import HostStore


def test_the_garbage_collector_passes_over_what_a_run_begins_with() -> None:
    """A pass over the store, the models and the plan would stop all threads for a while."""
    plan, seen = handmade.solo(handmade.resident_part("a")), list[bool]()
    (task,) = tasks_for(plan)

    def data(step: int) -> object:
        seen.append(any(isinstance(one, HostStore) for one in gc.get_objects()))
        return task.data(step)

    run(fit(plan, [task]), [replace(task, data=data)])
    assert len(seen) > 1
    assert not seen[-1]


def test_boundaries_that_are_not_contiguous() -> None:
    """Layers that hand on transposed tensors."""
    plan = handmade.streamed()
    tasks = tasks_for(plan, make=lambda: Batchwise(16))
    plan = fit(plan, tasks)
    assert_same(plan, tasks, run(plan, tasks))


def test_one_microbatch_with_unknown_draws() -> None:
    """Layers that draw in an irregular way train exactly when a step is one microbatch."""
    plan = handmade.solo(handmade.streamed_part("a", microbatches=1))
    tasks = tasks_for(plan, make=Irregular)
    plan = fit(plan, tasks)
    (task,) = plan.tasks
    shards = tuple(structs.replace(shard, rng_draws=None) for shard in task.shards)
    plan = structs.replace(plan, tasks=(structs.replace(task, shards=shards),))
    assert_same(plan, tasks, run(plan, tasks))


class Refused:
    """A generator that nobody may have for himself."""

    def __init__(self, state: torch.Tensor) -> None:
        raise AssertionError("lent")


def test_devices_draw_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default generator is lent as a whole only where a single device computes."""
    monkeypatch.setattr("executor.replay.ops.LentGenerator", Refused)
    for name, expected in (("pipeline", nullcontext()), ("streamed", pytest.raises(RunError))):
        tasks = tasks_for(handmade.PLANS[name]())
        with expected:
            run(fit(handmade.PLANS[name](), tasks), tasks)
