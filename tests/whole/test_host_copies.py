"""bf16 tasks in less host memory: planned without parameters there, trained to the same bits."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from msgspec import structs
from support.chains import chain, rows
from support.quick import built, least, measured, quickly
from support.same import assert_same

import plans
from executor import run
from executor.workload.task import Evaluation
from planner import Infeasible
from profiles.schema import Profile

TASK = chain("a", 4, 4, 2, precision="bf16")


def model() -> Any:
    assert callable(TASK.model)
    return TASK.model()


def tied() -> Any:
    made = model()
    made[3][0].weight = made[0][0].weight
    return made


def frozen() -> Any:
    made = model()
    made[1].requires_grad_(False)
    made[2][0].bias.requires_grad_(False)
    return made


@cache
def profiled(name: str) -> tuple[Profile, int]:
    """A task's profile, and the bytes of the smallest device that will do."""
    made = measured(TASKS[name], 2)
    return made, least(made).devices[0].budget_bytes


TASKS = {
    "chain": TASK,
    "tied": replace(TASK, model=tied),
    "frozen": replace(TASK, model=frozen),
    "evaluated": replace(TASK, evaluate=Evaluation(2, lambda n: rows(4, 100 + n), 2)),
}


@pytest.mark.parametrize(
    ("name", "share"), [("chain", 1.0), ("tied", 1.0), ("frozen", 1.6), ("evaluated", 1.6)]
)
def test_less_host_memory_trains_the_same_bits(name: str, share: float) -> None:
    """Parameters that have masters are not kept; on the smallest device, which updates on the host,
    and on a larger one."""
    with quickly():
        made, room = profiled(name)
        device = int(room * share)
        roomy = built(made, device)
        assert not any(shard.cast for shard in roomy.tasks[0].shards)
        kept = sum(shard.param_bytes + shard.state_bytes for shard in roomy.tasks[0].shards)
        plan = built(made, device, host_bytes=kept - 1)
    plans.prove(plan)
    cast = [shard for shard in plan.tasks[0].shards if shard.cast]
    assert cast
    assert plan.host.bytes < roomy.host.bytes
    assert_same(plan, [TASKS[name]], run(plan, [TASKS[name]]))


def test_without_a_rate_nothing_is_cast() -> None:
    """A profile that does not say how long casts take needs the host memory of before."""
    with quickly():
        made, _ = profiled("chain")
        shards = built(made).tasks[0].shards
        (device,) = made.machine.devices
        links = tuple(link for link in device.links if link.kind != "cast")
        assert len(links) == 3 < len(device.links)
        machine = structs.replace(made.machine, devices=(structs.replace(device, links=links),))
        older = structs.replace(made, machine=machine)
        kept = sum(shard.param_bytes + shard.state_bytes for shard in shards)
        with pytest.raises(Infeasible, match="smallest --host-memory that would do"):
            built(older, host_bytes=kept - 1)
