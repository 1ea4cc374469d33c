"""The state of a task beside the host store goes from one process to another, whole or in part."""

from dataclasses import replace
from functools import partial

import msgspec
import pytest

pytest.importorskip("torch")

from support import handmade
from support.chains import WIDTH, chain
from support.fit import fit, lasting
from torch import nn
from torch.optim.lr_scheduler import StepLR

from executor import run
from executor.distributed.state import Roles, parcel, roles_of, take
from executor.distributed.values import Parcel
from executor.numerics import CpuSource
from executor.replay import TaskState
from executor.replay.sides import sides
from executor.workload.task import Task

WHOLE: Roles = {0: (True, True)}


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1))


def task() -> Task:
    """With buffers, random numbers, a scheduler and step counters."""
    scheduler = partial(StepLR, step_size=1, gamma=0.5)
    layers = handmade.resident().tasks[0].shards[-1].end_layer
    return replace(chain("a", layers, 4, 4, make=normed), scheduler=scheduler)


def trained(steps: int) -> TaskState:
    """The task after so many steps."""
    own = replace(task(), steps=steps)
    plan = lasting(fit(handmade.resident(), [own]), steps)
    host = run(plan, [own]).store.tasks["a"]
    state = TaskState(host, 1, CpuSource(), _nothing, _nothing)
    state.rng.go_on(steps, host.rng_state)
    return state


def _nothing(*_: object) -> None:
    return


def sent(known: Parcel) -> Parcel:
    """As a message brings it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=Parcel)


def test_a_task_goes_on_from_what_it_was_sent() -> None:
    """It would send the same itself: buffers, counters, the scheduler, random numbers."""
    known, other = sent(parcel(trained(3), 3, WHOLE, begins=False)), trained(1)
    assert sent(parcel(other, 1, WHOLE, begins=False)).shards != known.shards
    take(other, known)
    assert sent(parcel(other, 3, WHOLE, begins=False)) == known


def test_who_updates_nothing_sends_no_counters() -> None:
    """And who runs nothing neither buffers nor random numbers."""
    state = trained(1)
    runs = parcel(state, 1, {0: (True, False)}, begins=False)
    assert (runs.shards[0][1], runs.rng != b"") == (None, True)
    updates = parcel(state, 1, {0: (False, True)}, begins=False)
    assert (updates.shards[0][0], updates.rng) == (None, b"")
    assert updates.shards[0][1]


def test_roles_are_those_of_a_process_devices() -> None:
    """Where a shard has forwards, and where it is updated."""
    program = handmade.pipeline().programs[0]
    here, there = (roles_of(sides(program, (0, 1), me).ops, "a") for me in (0, 1))
    assert set(here) | set(there) == {0, 1}
    both = program.ops
    assert roles_of(both, "a") == {0: (True, True), 1: (True, True)}
    assert roles_of(both, "b") == {}
