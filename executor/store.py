"""The host store: where every task's parameters, gradients and optimizer state live.

The models are the user's own, their parameters views of the store. What devices compute with are
replicas, so the store is never pointed elsewhere by a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from executor.batches import staging_bytes
from executor.device import HostMemory
from executor.errors import MismatchError, RunError, one_line
from executor.layers import split, ties
from executor.precision import needs_norms, norm_bytes
from executor.rng import Source
from executor.shard import Shard
from executor.workload import Task, build
from plans.schema import Plan
from plans.schema import Shard as PlanShard
from plans.schema import Task as PlanTask
from profiles import console
from profiles.units import show_bytes


@dataclass(frozen=True)
class Saved:
    """What a task goes on from: its model's state dict, optimizer state by parameter name, the
    random numbers' state before its next step, and an fp16 task's loss scale."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Mapping[str, Any]]
    rng: Tensor
    loss_scale: Mapping[str, Tensor] | None


class HostTask:
    """A task's model in the store: its shards, and where its random numbers begin.

    `saved`: where an earlier run left it.
    """

    def __init__(
        self,
        plan: PlanTask,
        task: Task,
        flats: dict[str, Tensor],
        staging: Tensor,
        source: Source,
        saved: Saved | None,
    ) -> None:
        self.plan = plan
        self.task = task
        self.staging = staging
        self.model, self.rng_state = build(task, source)
        self.loss_scale: Mapping[str, Tensor] | None = None
        if saved:
            _check_saved(plan, saved, self.rng_state)
            self.rng_state, self.loss_scale = saved.rng, saved.loss_scale
            _load_model(self.model, saved, plan.name)
        layers = split(self.model)
        _check_layers(plan, layers)
        last = len(plan.shards) - 1
        self.shards = [
            Shard(
                layers[cut.first_layer : cut.end_layer],
                task.optimizer,
                task.loss if k == last else None,
                plan.microbatches,
                task.precision,
                first=k == 0,
            )
            for k, cut in enumerate(plan.shards)
        ]
        self._flats = [
            {role: _flat(flats, f"{plan.name}.s{k}.{role}", size) for role, size in sizes.items()}
            for k, sizes in enumerate(map(_sizes, plan.shards))
        ]
        for k, shard in enumerate(self.shards):
            _check_bytes(plan, k, shard)
            shard.write_params(self._flats[k]["param"], self._flats[k]["state"])
        self.buffer_bytes = sum(shard.buffer_bytes for shard in self.shards)
        self.trainable = sum(len(shard.trainable) for shard in self.shards)
        _check_precision(plan, task, self.trainable)
        if saved:
            names = {id(p): name for name, p in self.model.named_parameters()}
            for shard, own in zip(self.shards, self._flats, strict=True):
                shard.restore(saved.optimizer, names, own["state"])

    def settle(self) -> None:
        """Point model and optimizers back at the store, after devices held the state."""
        for shard, flats in zip(self.shards, self._flats, strict=True):
            shard.bind_params(flats["param"])
            if shard.optimizer:
                shard.optimizer.bind(flats["state"])
            for parameter in shard.parameters:
                parameter.grad = None

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Each parameter's optimizer state by the user's own parameter name; after `settle`."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {
            names[id(parameter)]: state
            for shard in self.shards
            if shard.optimizer
            for parameter, state in shard.optimizer.state().items()
        }


class HostStore:
    """All host buffers of the plan, and what batches are prepared in, from `memory`.

    `tasks` are the models in it, by name. Everything is taken before the first model is built;
    RunError with a table when the machine has less.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: Sequence[Task],
        memory: HostMemory,
        source: Source,
        saved: Mapping[str, Saved],
    ) -> None:
        by_name = {task.name: task for task in tasks}
        for planned in plan.tasks:
            if planned.name not in by_name:
                raise MismatchError(
                    f"the plan trains task {planned.name}, the workload has "
                    f"{', '.join(by_name) or 'none'}; build the plan again"
                )
        self.bytes = max((b.offset + b.bytes for b in plan.host.buffers), default=0)
        _check_room(plan, self.bytes)
        slab = memory.take(self.bytes)
        self.flats = {b.name: slab[b.offset : b.offset + b.bytes] for b in plan.host.buffers}
        staging = {task.name: memory.take(staging_bytes(task)) for task in plan.tasks}
        self.tasks = {
            t.name: HostTask(
                t, by_name[t.name], self.flats, staging[t.name], source, saved.get(t.name)
            )
            for t in plan.tasks
        }


def _check_room(plan: Plan, store: int) -> None:
    """RunError with what would be taken, line by line, when the machine has less memory free."""
    free = free_host_bytes()
    staging = {task.name: staging_bytes(task) for task in plan.tasks}
    needed = store + sum(staging.values())
    if free is None or needed <= free:
        return
    rows: list[tuple[str, ...]] = [("task", "parameters", "optimizer state", "batches")]
    for task in plan.tasks:
        sizes = [sum(_sizes(shard)[role] for shard in task.shards) for role in ("param", "state")]
        rows.append((task.name, *map(show_bytes, (*sizes, staging[task.name]))))
    table = "; ".join(" ".join(row) for row in console.columns(rows, numbers=True))
    raise RunError(
        f"the host store and the batches need {needed} bytes, the machine has {free} free: {table}"
        "; free memory, or build with a smaller --host-memory"
    )


def free_host_bytes() -> int | None:
    """Memory that is available now; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(r.split()[1]) for r in lines if r.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _check_saved(plan: PlanTask, saved: Saved, rng_state: Tensor) -> None:
    """MismatchError for a checkpoint of another kind of device or of another precision."""
    mine, theirs = rng_state.numel(), saved.rng.numel() if isinstance(saved.rng, Tensor) else 0
    if mine != theirs:
        raise MismatchError(
            f"task {plan.name}: the checkpoint has {theirs} bytes of random state, a device of "
            f"this plan's kind {mine}; a task goes on on the kind of device where it began"
        )
    if (plan.precision == "fp16-autocast") != bool(saved.loss_scale):
        raise MismatchError(
            f"task {plan.name}: is {plan.precision} in the plan, and the checkpoint has "
            f"{'a' if saved.loss_scale else 'no'} loss scale; go on in the precision it began with"
        )


def _load_model(model: nn.Module, saved: Saved, name: str) -> None:
    try:
        model.load_state_dict(saved.model)
    except (RuntimeError, KeyError) as error:
        raise MismatchError(
            f"task {name}: the checkpoint is of another model: {one_line(error)}"
        ) from None


def _sizes(shard: PlanShard) -> dict[str, int]:
    return {"param": shard.param_bytes, "state": shard.state_bytes}


def _flat(flats: dict[str, Tensor], name: str, size: int) -> Tensor:
    """The value's bytes in its buffer; what has no bytes has no buffer."""
    return flats[name][:size] if size else torch.empty(0, dtype=torch.uint8)


def _check_precision(plan: PlanTask, task: Task, trainable: int) -> None:
    norms = norm_bytes(trainable) if needs_norms(task.precision, task.clip) else 0
    if (plan.precision, plan.norm_bytes) != (task.precision, norms):
        raise MismatchError(
            f"task {plan.name}: the plan is for {plan.precision} with {plan.norm_bytes} bytes of "
            f"gradient norms, the workload for {task.precision} with {norms}; "
            "profile and build again"
        )


def _check_layers(plan: PlanTask, layers: Sequence[nn.Module]) -> None:
    planned = plan.shards[-1].end_layer
    if len(layers) != planned:
        raise MismatchError(
            f"task {plan.name}: the plan has {planned} layers, the model {len(layers)}; "
            "profile and build again"
        )
    for group in ties(layers):
        homes = {
            number
            for number, shard in enumerate(plan.shards)
            for layer in group
            if shard.first_layer <= layer < shard.end_layer
        }
        if len(homes) > 1:
            raise MismatchError(
                f"task {plan.name}: layers {list(group)} share a parameter but the plan has them "
                f"in shards {sorted(homes)}; profile and build again"
            )


def _check_bytes(plan: PlanTask, index: int, shard: Shard) -> None:
    planned = plan.shards[index]
    for what, mine, theirs in (
        ("parameter", shard.param_bytes, planned.param_bytes),
        ("gradient", shard.grad_bytes, planned.grad_bytes),
    ):
        if mine != theirs:
            raise MismatchError(
                f"shard {plan.name}.s{index}: the model has {mine} {what} bytes, the plan "
                f"{theirs}; profile and build again"
            )
