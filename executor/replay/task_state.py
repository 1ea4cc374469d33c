"""The state of a task that outlives its ops, besides their buffers: its feeds, random numbers,
replicas, graphs and norms."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from executor.errors import RunError
from executor.numerics import Grads, LossScale, Norms, Snapshot, Source, TaskRng
from executor.optim import Scaling
from executor.shards import NONE, Absent, Graph, HostTask, Replicas
from executor.workload import (
    Batches,
    Feed,
    Steps,
    draws_of,
    evaluation_feed,
    judged_steps,
    planned_shapes,
    steps_of,
)
from plans.order import judge
from plans.part import Part


class Norming(NamedTuple):
    """The shards whose norms of a step are in a norm buffer, with the parameters that have one,
    their dtype, and the loss scale."""

    step: int
    noted: Mapping[int, Sequence[int]]
    dtype: torch.dtype
    scale: Mapping[str, Tensor] | None


# Task, step, loss, metrics; from any thread.
OnLoss = Callable[[str, int, float, Mapping[str, float]], None]


class TaskState:
    """A task's batches, random numbers, replicas, graphs, gradients and norms."""

    def __init__(
        self,
        host: HostTask,
        threads: int,
        source: Source,
        on_step: OnLoss,
        on_evaluation: OnLoss,
        steps: Steps | None = None,
        judged: Steps | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """`steps`: of a task whose samples have lengths, `judged`: the rounds of its evaluations.
        `alone`: no other process trains a part of it."""
        plan = host.plan
        self.host = host
        self.plan = plan
        draws = [shard.rng_draws for shard in plan.shards]
        self.rng = TaskRng(
            *(host.rng_state, draws, plan.microbatches, source, plan.done),
            chained=alone,
            rows=draws_of(plan, steps) if steps and any(draws) else None,
        )
        called = ("step {}: data" if steps else "data({})").format
        own = plan, host.task, threads, host.staging, self.rng.prepare, called, steps
        loss = partial(on_step, plan.name)
        training = Feed(Batches(*own), plan.microbatches, loss, steps=steps)
        told = partial(on_evaluation, plan.name)
        evaluation = evaluation_feed(
            plan, host.task, threads, host.evaluation_staging, told, judged
        )
        self._feeds = [training, *([evaluation] if evaluation else [])]
        self.replicas = Replicas(host.shards)
        # By shard and microbatch, from F to B, or to I and on to W.
        self.left: dict[tuple[int, int], Graph | Snapshot] = {}
        self.gradients: dict[tuple[int, int], Grads] = {}  # of boundaries, from one B to the next
        self.absent = Absences()
        self.scale = LossScale(host.loss_scale) if plan.precision == "fp16-autocast" else None
        self._step = 0  # of which norms are noted
        self._noted: dict[int, Sequence[int]] = {}  # parameters whose norms are known, by shard
        self._norm_dtype = torch.float32

    def feed(self, *, evaluates: bool) -> Feed:
        """The batches and losses of training, or those of evaluation."""
        return self._feeds[-1] if evaluates else self._feeds[0]

    def expect(self, shard: int, graph: Graph) -> None:
        """RunError when a graph begins where no gradient comes, since none was needed at first."""
        needs = self.feed(evaluates=False).boundaries[shard + 1].needs
        ends = graph.ends if isinstance(graph.ends, Mapping) else {}
        if not all(needs[number] for number in ends):
            raise RunError(
                f"the boundary before shard {shard + 1} needs more gradients than in its first "
                "microbatch; let a tensor between layers need one always or never"
            )

    def note_norms(
        self, step: int, shard: int, norms: Tensor, absent: Absent, flat: Tensor
    ) -> None:
        """Write the norms of a shard's gradients, without the absent ones, to the task's norm
        buffer (uint8); the last shard of a step also writes the factor for its updates."""
        self._step = step
        buffer = Norms(flat, self.host.trainable)
        present = [k for n, k in enumerate(self.host.numbers[shard]) if n not in absent]
        buffer.note(present, norms)
        self._noted[shard] = present
        if present:
            self._norm_dtype = norms.dtype
        if len(self._noted) == sum(bool(one.parameters.trainable) for one in self.host.shards):
            found = sorted(number for numbers in self._noted.values() for number in numbers)
            self._noted.clear()
            self._step += 1
            scale = self.scale.to(flat.device) if self.scale else None
            buffer.close(found, self._norm_dtype, self.host.task.clip, scale)

    def norming(self) -> Norming:
        """The facts about the norm buffer, for another process."""
        scale = self.scale.state() if self.scale else None
        return Norming(self._step, dict(self._noted), self._norm_dtype, scale)

    def go_on(self, known: Norming) -> None:
        """Go on with a norm buffer as another process left it, unless that is known already."""
        if (known.step, len(known.noted)) <= (self._step, len(self._noted)):
            return
        self._step, self._noted = known.step, dict(known.noted)
        self._norm_dtype = known.dtype
        self.scale = LossScale(known.scale) if known.scale else None

    def scaling(self, flat: Tensor | None) -> Scaling | None:
        """The factor for updates in a complete norm buffer; None in a task without norms."""
        if flat is None:
            return None
        buffer = Norms(flat, self.host.trainable)
        return Scaling(buffer.factor, buffer.left_out if self.scale else None)

    def collect(self) -> None:
        """Read the losses whose marks are reached."""
        for feed in self._feeds:
            feed.collect()

    def stop(self) -> None:
        """Load no more batches."""
        for feed in self._feeds:
            feed.batches.stop()

    def drop(self) -> None:
        """The task trains no more; free all that it holds beside the host store."""
        self.stop()
        self.left.clear()
        self.replicas.clear()

    def settle(self, step: int) -> None:
        """The task's state is in the host store, `step` steps done; from there it can go on."""
        self.host.settle()
        self.replicas.settle()
        self.host.rng_state = self.rng.before(step)
        self.host.loss_scale = self.scale.state() if self.scale else None


def task_states(
    part: Part,
    tasks: Mapping[str, HostTask],
    source: Source,
    tables: Path | None,
    on_step: OnLoss,
    on_evaluation: OnLoss,
    *,
    alone: bool = False,
) -> dict[str, TaskState]:
    """The states of a process' tasks, by name, see TaskState. Tables lie beside the plan's file
    `tables`. MismatchError for a task without."""
    plan, told, found = part.plan, (on_step, on_evaluation), {}
    shapes, threads = planned_shapes(plan), max(device.threads for device in plan.devices)
    for name, one in tasks.items():
        steps = steps_of(one.plan, one.task, shapes[name], tables) if one.plan.lengths else None
        program = judge(plan, name)
        judged = judged_steps(one.plan, one.task, program.tokens if program else (), tables)
        found[name] = TaskState(one, threads, source, *told, steps, judged, alone=alone)
    return found


class Absences:
    """The parameters that gradients lack, by the address of the gradients (uint8)."""

    def __init__(self) -> None:
        self._known: dict[int, Absent] = {}

    def of(self, flat: Tensor) -> Absent:
        """The parameters without a gradient in these gradients."""
        return self._known.get(flat.data_ptr(), NONE) if self._known else NONE

    def note(self, flat: Tensor, absent: Absent) -> None:
        """These gradients were written, all but those of the absent parameters."""
        if absent:
            self._known[flat.data_ptr()] = absent
        elif self._known:
            self._known.pop(flat.data_ptr(), None)

    def carry(self, source: Tensor, target: Tensor) -> None:
        """Gradients were copied from one place to the other."""
        if self._known:
            self.note(target, self.of(source))
