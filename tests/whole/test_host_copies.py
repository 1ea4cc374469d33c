"""bf16 tasks in less host memory: planned without parameters there, trained to the same bits."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from msgspec import structs
from support.quick import measured, quickly
from support.same import assert_same
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import plans
from executor import run
from executor.workload.task import Evaluation, Task
from planner import Infeasible, Problem, build
from plans.schema import Plan
from profiles.schema import Profile

WIDTH = 32


def rows(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(4, WIDTH, generator=draw), torch.randn(4, WIDTH, generator=draw)


def chain() -> nn.Module:
    each = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.GELU()) for _ in range(6))
    return nn.Sequential(*each)


def tied() -> nn.Module:
    made = chain()
    assert isinstance(made, nn.Sequential)
    made[5][0].weight = made[0][0].weight  # type: ignore[index]
    return made


def frozen() -> nn.Module:
    made = chain()
    assert isinstance(made, nn.Sequential)
    made[1].requires_grad_(False)
    made[2][0].bias.requires_grad_(False)  # type: ignore[index,union-attr]
    return made


def task(model: Callable[[], nn.Module], **fields: object) -> Task:
    fused = partial(AdamW, lr=1e-2, fused=True)
    return replace(Task("a", model, rows, F.mse_loss, fused, 4, 3, "bf16"), **fields)  # type: ignore[arg-type]


def planned(made: Profile, host_bytes: int, device_bytes: int | None = None) -> Plan:
    asked = Problem.of(made, devices=1, device_bytes=device_bytes, host_bytes=host_bytes)
    return build(asked, profile_sha256="0" * 64)


@cache
def profiled(name: str) -> tuple[Profile, int]:
    """A task's profile, and the bytes of the smallest device that will do."""
    made = measured(TASKS[name], 2)
    with pytest.raises(Infeasible) as refused:
        planned(made, 1 << 30, 1)
    return made, refused.value.smallest


TASKS = {
    "chain": task(chain),
    "tied": task(tied),
    "frozen": task(frozen),
    "evaluated": task(chain, evaluate=Evaluation(every=2, data=lambda n: rows(100 + n), batches=2)),
}


@pytest.mark.parametrize("share", [1.0, 1.6])
@pytest.mark.parametrize("name", TASKS)
def test_less_host_memory_trains_the_same_bits(name: str, share: float) -> None:
    """Parameters that have masters are not kept; on the smallest device, which updates on the host,
    and on a larger one."""
    with quickly():
        made, least = profiled(name)
        device = int(least * share)
        roomy = planned(made, 1 << 30, device)
        assert not any(shard.cast for shard in roomy.tasks[0].shards)
        kept = sum(shard.param_bytes + shard.state_bytes for shard in roomy.tasks[0].shards)
        plan = planned(made, kept - 1, device)
    plans.prove(plan)
    cast = [shard for shard in plan.tasks[0].shards if shard.cast]
    assert cast
    assert plan.host.bytes < roomy.host.bytes
    assert_same(plan, [TASKS[name]], run(plan, [TASKS[name]]))


def test_without_a_rate_nothing_is_cast() -> None:
    """A profile that does not say how long casts take needs the host memory of before."""
    with quickly():
        made, _ = profiled("chain")
        shards = planned(made, 1 << 30).tasks[0].shards
        (device,) = made.machine.devices
        links = tuple(link for link in device.links if link.kind != "cast")
        assert len(links) == 3 < len(device.links)
        machine = structs.replace(made.machine, devices=(structs.replace(device, links=links),))
        older = structs.replace(made, machine=machine)
        kept = sum(shard.param_bytes + shard.state_bytes for shard in shards)
        with pytest.raises(Infeasible, match="smallest --host-memory that would do"):
            planned(older, kept - 1)
