"""X between processes with GPUs, as NCCL moves bytes: what is asked for is on its way."""

import os
from functools import cache, partial

import pytest
import torch
from support import fake_cuda, fake_nccl, handmade
from support.chains import WIDTH, block, tasks_for
from support.fit import fit
from support.pauses import pausing
from support.pipeline_cases import Case, built, profiled
from support.plain import train
from support.waits import counted
from torch import nn

import plans
from executor.workload.task import Task
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick", "warm")


def still() -> nn.Module:
    """Nine layers without random numbers: all processes have one generator here."""
    inner = (nn.Sequential(nn.Linear(24, 24), nn.GELU()) for _ in range(7))
    return nn.Sequential(nn.Linear(WIDTH, 24), *inner, nn.Linear(24, 4))


CASES = {
    "1f1b": (Case("4x1", "1f1b", still), (0, 1, 2, 3)),
    "1f1b-spilling": (Case("4x1", "1f1b", still, least=True), (0, 0, 1, 1)),
    "zero-bubble": (Case("2x1", "zero-bubble", still, clip=0.1), (0, 1)),
}


@cache
def planned(name: str) -> tuple[Plan, list[Task], tuple[int, ...]]:
    """A case's plan for GPUs, its tasks, and who has which device."""
    if name in CASES:
        case, ranks = CASES[name]
        made, tasks = built(profiled(case), case), [case.task]
    else:
        made, ranks = handmade.PLANS[name](), (0, 1)
        tasks = tasks_for(made, partial(block, 0.0))
        made = fit(made, tasks)
    plan = fake_cuda.on_cuda(made)
    plans.prove(plan)
    return plan, tasks, ranks


def test_the_host_waits_for_its_device_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what one process waits for: for what an X sends, for its end, and for that of ops that
    others wait for."""
    waits = counted(monkeypatch)
    replay("parallel")
    assert waits.keys() == {
        *("CudaQueue.end", "Stream.throttle", "SegmentRun._play", "SegmentRun._drain"),
        *("Crossing.sender.<locals>.send", "Crossing.receiver.<locals>.tell"),
        *("ToldGate.open", "SegmentRun._meet"),
    }


@pytest.mark.parametrize("name", ["pipeline", "parallel", *CASES])
def test_bits_of_the_plain_loop(name: str) -> None:
    """Whatever the order in which ops are launched, of which ORDERS in the environment are tried;
    in every second one a stream has room for eight launches."""
    replay(name)


def replay(name: str) -> None:
    """Replay a case in some orders of launches, each to the bits of the plain loop."""
    plan, tasks, ranks = planned(name)
    for seed in range(int(os.environ.get("ORDERS", "1"))):
        room = (1000, 8)[(seed + len(name)) % 2]
        with pytest.MonkeyPatch.context() as patch:
            seen = fake_cuda.install(patch, seed, 300, devices=len(ranks), room=room)
            pausing(patch, seed, 300)
            store = fake_nccl.replayed(patch, seen.memory, plan, tasks, ranks)
            for made, task in zip(plan.tasks, tasks, strict=True):
                plain = train(task, made.microbatches)
                for key, value in store.at_hand(task.name).whole().named_parameters():
                    assert torch.equal(value, plain.params[key]), (seed, key)
