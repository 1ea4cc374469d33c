"""The state of a task beside the host store, between its segments: random numbers, the loss scale,
counters of optimizers and schedulers, module buffers. It goes with the messages that begin a
segment's parts, and comes back with those that end them.
"""

from collections.abc import Iterable, Mapping

import torch

from executor.distributed.values import Parcel, pack, pack_spec, unpack, unpack_spec
from executor.numerics import LossScale
from executor.optim import Carried
from executor.replay import TaskState
from plans.schema import Op

Roles = Mapping[int, tuple[bool, bool]]  # by shard: it has forwards here, and updates


def roles_of(ops: Iterable[Op], task: str) -> Roles:
    """The shards of a task of which a process with these ops of a program has forwards or
    updates."""
    own = [op.name for op in ops]
    runs = {name.number for name in own if name.task == task and name.kind in "FBI"}
    updates = {name.number for name in own if name.task == task and name.kind == "U"}
    return {number: (number in runs, number in updates) for number in runs | updates}


def parcel(task: TaskState, step: int, roles: Roles, *, begins: bool) -> Parcel:
    """The state of a task after so many steps, where it has these roles; a segment `begins` with
    it, or has ended."""
    runs = any(run for run, _ in roles.values())
    # Who updates knows the latest norms, and process 0 what was before a segment.
    scaled = task.scale and (begins or any(update for _, update in roles.values()))
    return Parcel(
        task.plan.name,
        step,
        task.rng.before(step).numpy().tobytes() if runs else b"",
        pack(dict(task.scale.state())) if task.scale and scaled else None,
        {number: _shard(task, number, *role) for number, role in roles.items()},
    )


def _shard(task: TaskState, number: int, runs: bool, updates: bool) -> list[object]:
    buffers = task.host.shards[number].buffers
    optimizer = task.host.carried(number) if updates else None
    numbers = buffers.found.numbers
    known = None
    if runs and numbers is not None:
        known = [list(numbers), [pack(one) for one in buffers.now()]]
    if optimizer is None:
        return [known, None]
    slots = [[name, key, pack_spec(spec)] for name, key, spec in optimizer.slots]
    rest = pack([optimizer.settings, optimizer.state, optimizer.begun, optimizer.adopted_bytes])
    return [known, [slots, rest]]


def take(task: TaskState, known: Parcel) -> None:
    """Let a task go on from there."""
    if known.rng:
        state = torch.frombuffer(bytearray(known.rng), dtype=torch.uint8)
        task.rng.go_on(known.step, state)
    if known.scale is not None:
        task.scale = LossScale(unpack(known.scale))
    for number, (buffers, optimizer) in known.shards.items():
        if buffers is not None:
            numbers, values = buffers
            found = tuple(unpack(one) for one in values)
            task.host.shards[number].buffers.take(tuple(numbers), found)
            task.replicas.forget(number)  # a new one begins with these values
        if optimizer is not None:
            slots, rest = optimizer
            settings, values, begun, count = unpack(rest)
            specs = [(name, key, unpack_spec(spec)) for name, key, spec in slots]
            task.host.carry_on(number, Carried(settings, specs, values, begun, count))
