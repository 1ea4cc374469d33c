"""The host store: where every task's parameters, gradients and optimizer state live.

The models are the user's own, their parameters views of the store. What devices compute with are
replicas, so the store is never pointed elsewhere by a device.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from executor.devices import HostMemory
from executor.errors import MismatchError
from executor.numerics import Source
from executor.optim import Carried, merged
from executor.shards.checks import (
    Saved,
    base_of,
    dtype_mismatches,
    expect,
    expect_samples,
    expect_shard,
    expect_task,
    load,
    misfit,
)
from executor.shards.host_room import Shared, at_home, check_room, kept_sizes, staging_of
from executor.shards.shard import Shard
from executor.shards.tied import tying
from executor.workload import Ending, Task, build, samples_of
from plans.order import begins_away, spans, waiting
from plans.part import Part
from plans.schema import Task as PlanTask
from plans.view import base_owners

# The layers of a task's model, in the order in which they run.
Cutter = Callable[[PlanTask, Task, nn.Module], list[nn.Module]]


class HostTask:
    """A task's model in the store: its shards, and where its random numbers begin.

    `base`: of what it does not train, see `checks.base_of`; None where files have that, too.
    `owner`: the first task that has it in the same bytes, and writes it there.
    `saved`: where an earlier run left it. `fills`: the shards of which it writes what they begin
    with into the store; None where another process does that.
    """

    def __init__(
        self,
        plan: PlanTask,
        task: Task,
        flats: dict[str, Tensor],
        staging: Tensor,
        source: Source,
        saved: Saved | None,
        cut: Cutter,
        fills: Collection[int] | None,
        base: str | None = None,
        owner: str = "",
    ) -> None:
        self.plan = plan
        self.task = task
        half = len(staging) // (2 if plan.evaluation else 1)
        self.staging, self.evaluation_staging = staging[:half], staging[half:]
        self.samples = samples_of(task.data)
        if saved:
            expect_samples(plan, saved, self.samples)
        self.model, self.rng_state = build(task, source)
        self.base = base or base_of(self.model, plan.precision)
        self._owner = owner or plan.base
        self._names = {id(p): name for name, p in self.model.named_parameters()}
        self.loss_scale: Mapping[str, Tensor] | None = None
        if saved:
            load(plan, saved, self.model, self.base, self.rng_state)
            self.rng_state, self.loss_scale = saved.rng, saved.loss_scale
        self.shards = _shards(plan, task, self.model, cut(plan, task, self.model))
        self._flats = [  # by role; without parameters where masters alone are kept
            {
                role: _flat(
                    flats, f"{plan.base if role == 'base' else plan.name}.s{k}.{role}", size
                )
                for role, size in sizes.items()
            }
            for k, sizes in enumerate(map(kept_sizes, plan.shards))
        ]
        for k, shard in enumerate(self.shards):
            expect_shard(plan, k, shard.parameters)
            self._write(k, shard, fills=k in (fills or ()))
        self.buffer_bytes = sum(shard.buffers.bytes for shard in self.shards)
        self.numbers = _numbers(self.model, self.shards)
        self.trainable = sum(map(len, self.numbers))
        expect_task(plan, task, self.trainable)
        if saved and fills is not None:
            self._restore(saved, fills)

    def _write(self, k: int, shard: Shard, *, fills: bool) -> None:
        """Let a shard begin in the store. The base is there already where another task has written
        it; MismatchError where that has another one."""
        own, base = self._flats[k] if fills else {}, self._flats[k]["base"]
        writes = fills and self._owner == self.plan.name
        shard.write_params(own.get("param"), own.get("state"), base if writes else None)
        if fills and not writes and shard.parameters.differs(base):
            raise MismatchError(
                f"task {self.plan.name}: what it does not train is no longer what task "
                f"{self._owner} does not train; profile and build again"
            )
        shard.parameters.bind_base(base)

    def _restore(self, saved: Saved, fills: Collection[int]) -> None:
        """Let the optimizers go on, in the store those of the shards that it `fills`.
        MismatchError, a line for everything that does not fit."""
        lines = dtype_mismatches(self.model.state_dict(), saved.model)
        for k, (shard, own) in enumerate(zip(self.shards, self._flats, strict=True)):
            state = own["state"] if k in fills else torch.empty_like(own["state"])
            try:
                shard.restore(saved.optimizer, self._names, state, saved.settings)
            except MismatchError as error:
                lines.append(str(error))
                continue
            if shard.optimizer:
                shard.optimizer.bind(own["state"])
        if lines:
            raise misfit(self.plan, dict.fromkeys(lines))

    def settle(self) -> None:
        """Point model and optimizers back at the store, after devices held the state."""
        self.release()
        for shard, flats in zip(self.shards, self._flats, strict=True):
            if shard.optimizer:
                shard.optimizer.bind(flats["state"])
            for parameter in shard.parameters.all:
                parameter.grad = None

    def whole(self) -> nn.Module:
        """The model, with memory of its own for parameters of which the store has only masters;
        after `settle`, and until `release`."""
        for shard, flats in zip(self.shards, self._flats, strict=True):
            if "param" not in flats:
                shard.parameters.make(flats["state"])
        return self.model

    def release(self) -> None:
        """Let the model have nothing but what is in the store."""
        for shard, flats in zip(self.shards, self._flats, strict=True):
            shard.parameters.bind(flats.get("param"))

    @property
    def kept(self) -> list[Tensor]:
        """The flats that live in the store between segments, shard by shard; none that is empty,
        and no base, which is always there."""
        return [
            flat
            for flats in self._flats
            for role, flat in flats.items()
            if flat.numel() and role != "base"
        ]

    def leave(self) -> None:
        """Let go of the store, where others will be; using the model is an error from now on."""
        for shard in self.shards:
            shard.parameters.leave()

    def begin(self) -> None:
        """Have optimizers wherever there are masters, which are in a checkpoint as theirs."""
        for shard, flats in zip(self.shards, self._flats, strict=True):
            if shard.optimizer is None and shard.parameters.masters:
                shard.begin_optimizer().bind(flats["state"])

    def come_back(self, saved: Saved) -> None:
        """Have its state in the store again, as it was saved. Buffers are as they were: to load
        them is no change of those that never change."""
        self.release()
        model = self.whole()
        with _unsafe_preserve_version_counter(tuple(model.buffers())):
            model.load_state_dict(saved.model)
        self._restore(saved, range(len(self.shards)))
        self.release()

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Each parameter's optimizer state by the user's own parameter name, for those that have
        some; after `settle`."""
        return {
            self._names[id(parameter)]: state
            for shard in self.shards
            if shard.optimizer
            for parameter, state in shard.optimizer.state().items()
            if state
        }

    def carried(self, shard: int) -> Carried | None:
        """The state of the shard's optimizer beside the store, for another process; None before its
        first step."""
        optimizer = self.shards[shard].optimizer
        return optimizer.carried(self._names) if optimizer else None

    def carry_on(self, shard: int, known: Carried) -> None:
        """Let the shard's optimizer go on from where one of another process was."""
        self.shards[shard].begin_optimizer().carry_on(
            known, self._names, self._flats[shard]["state"]
        )

    def settings(self) -> list[dict[str, Any]]:
        """The optimizers' options, schedulers and counters, as a checkpoint has them."""
        return merged([s.optimizer.settings(self._names) for s in self.shards if s.optimizer])


class Shelf(Protocol):
    """Where tasks wait that have no room in the store: their latest checkpoints."""

    def put(self, task: HostTask) -> None:
        """Write a task as it begins."""

    def take(self, task: str) -> Saved:
        """The latest state of a task that was written, or that it goes on from."""


class HostStore:
    """All host buffers of a part of the plan, and what batches are prepared in, from `memory`.

    `tasks` are the models in it, by name. Everything is taken before the first model is built;
    RunError with a table when the machine has less. Tasks may take turns in the same bytes: those
    `away` are on the `shelf`, where whoever is to leave has been written before.
    shared: the memory that it is in, where several processes have it.
    """

    def __init__(
        self,
        part: Part,
        tasks: Sequence[Task],
        memory: HostMemory,
        source: Source,
        saved: Mapping[str, Saved],
        cut: Cutter,
        shelf: Shelf | None = None,
        shared: Shared | None = None,
    ) -> None:
        by_name = {task.name: task for task in tasks}
        for planned in part.tasks:
            if planned.name not in by_name:
                raise MismatchError(
                    f"the plan trains task {planned.name}, the workload has "
                    f"{', '.join(by_name) or 'none'}; build the plan again"
                )
        self.bytes = part.plan.host.bytes
        check_room(part, by_name)
        if shared:
            slab = shared.slab
            memory.lock(slab, spans(part.plan)[part.node])
        else:
            slab = memory.take(self.bytes)
        self._bring = shared.bring if shared else at_home
        self.flats = {b.name: slab[b.offset : b.offset + b.bytes] for b in part.plan.host.buffers}
        staging = {name: memory.take(size) for name, size in staging_of(part).items()}
        self.away: set[str] = set()
        self._shelf = shelf
        self.tasks: dict[str, HostTask] = {}
        lines, begin, waits = list[str](), begins_away(part.plan), waiting(part.plan)
        owners = base_owners(part.plan)
        for t in sorted(part.tasks, key=lambda t: t.name not in begin):
            own = by_name[t.name], self.flats, staging[t.name], source, saved.get(t.name), cut
            fills = None if shared and not shared.fills else part.held.get(t.name, ())
            owner = owners.get(t.name, "")
            base = self.tasks[owner].base if owner in self.tasks else None  # hashed once
            try:
                self.tasks[t.name] = HostTask(t, *own, fills, base, owner)
            except MismatchError as error:
                lines += error.lines
                continue
            if waits:
                self.tasks[t.name].base = None  # it comes back from its file alone
            if t.name in begin and not lines and shelf:
                if t.name not in saved or saved[t.name].base:  # not all of it is in the file
                    self.tasks[t.name].begin()
                    shelf.put(self.tasks[t.name])
                self.leave(t.name)
        if lines:
            raise MismatchError(*lines)

    def fetch(self, task: str) -> None:
        """Have the task in the store, where it may be already; those in its place leave."""
        if task in self.away and self._shelf:
            saved, place = self._shelf.take(task), _extent(self.tasks[task].kept)
            for other in self.tasks.keys() - self.away - {task}:
                low, high = _extent(self.tasks[other].kept)
                if low < place[1] and place[0] < high:
                    self.leave(other)
            self.tasks[task].come_back(saved)
            self.away.discard(task)

    def at_hand(self, task: str) -> HostTask:
        """The task with its state in the store, when no op runs that uses it.

        Those whose place it takes go; their models are of use again when they come back. What of it
        is in the stores of other nodes is here until another task is asked for.
        """
        self._bring(task)
        self.fetch(task)
        return self.tasks[task]

    def leave(self, task: str) -> None:
        """Let others have the task's bytes; its state is on the shelf."""
        self.tasks[task].leave()
        self.away.add(task)


def _extent(flats: Sequence[Tensor]) -> tuple[int, int]:
    """The first address of these flats, and the one behind them all."""
    begins = [flat.data_ptr() for flat in flats]
    ends = [flat.data_ptr() + len(flat) for flat in flats]
    return min(begins, default=0), max(ends, default=0)


def _shards(
    plan: PlanTask, task: Task, model: nn.Module, layers: Sequence[nn.Module]
) -> list[Shard]:
    """The plan's shards of a model; MismatchError for another number of layers or other ties."""
    expect(f"task {plan.name}", {"layers": (plan.shards[-1].end_layer, len(layers))})
    recipe, last = task.recipe(model), len(plan.shards) - 1
    metrics = task.evaluate.metrics if task.evaluate else {}
    return [
        Shard(
            layers[cut.first_layer : cut.end_layer],
            recipe,
            Ending(task.loss, metrics, task.lengths is not None) if k == last else None,
            task.precision,
            first=k == 0,
            tied=tied,
            apart=bool(plan.base),
        )
        for k, (cut, tied) in enumerate(
            zip(plan.shards, tying(plan, layers, task.precision), strict=True)
        )
    ]


def _numbers(model: nn.Module, shards: Sequence[Shard]) -> list[list[int]]:
    """The place of every shard's trainable parameters among those of all, in the model's order: a
    total norm has other bits in another one, and layers may run in another one."""
    held = {id(p) for shard in shards for p in shard.parameters.trainable}
    ordered = [id(p) for p in model.parameters() if id(p) in held]
    places = {parameter: number for number, parameter in enumerate(ordered)}
    return [[places[id(p)] for p in shard.parameters.trainable] for shard in shards]


def _flat(flats: dict[str, Tensor], name: str, size: int) -> Tensor:
    """The value's bytes in its buffer; a value without bytes has no buffer."""
    return flats[name][:size] if size else torch.empty(0, dtype=torch.uint8)
