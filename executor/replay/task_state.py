"""A task while it runs: what its ops leave for its next ones, besides their buffers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from executor.errors import RunError
from executor.numerics import Grads, LossScale, Norms, Snapshot, Source, TaskRng
from executor.optim import Scaling
from executor.replay.feed import Feed, evaluation_feed
from executor.shards import NONE, Absent, Graph, HostTask, Replicas
from executor.workload import Batches

OnLoss = Callable[[str, int, float], None]  # task, step, loss; from any thread


class TaskState:
    """A task's batches, random numbers, replicas, graphs, gradients and norms."""

    def __init__(
        self,
        host: HostTask,
        threads: int,
        source: Source,
        on_step: OnLoss,
        on_evaluation: OnLoss = lambda task, step, loss: None,
    ) -> None:
        plan = host.plan
        self.host = host
        self.plan = plan
        draws = [shard.rng_draws for shard in plan.shards]
        self.rng = TaskRng(host.rng_state, draws, plan.microbatches, source, plan.done)
        batches = Batches(plan, host.task, threads, host.staging, self.rng.prepare)
        self.training = Feed(batches, plan.microbatches, partial(on_step, plan.name))
        self.evaluation = evaluation_feed(host, threads, partial(on_evaluation, plan.name))
        self.replicas = Replicas(host.shards)
        self.graphs: dict[tuple[int, int], Graph] = {}  # (shard, microbatch) between F and B
        self.before: dict[tuple[int, int], Snapshot | None] = {}  # the same, where it runs again
        self.gradients: dict[tuple[int, int], Grads] = {}  # of boundaries, from one B to the next
        self.absent = Absences()
        self.scale = LossScale(host.loss_scale) if plan.precision == "fp16-autocast" else None
        self._noted: dict[int, Sequence[int]] = {}  # parameters whose norms are known, by shard
        self._norm_dtype = torch.float32

    @property
    def feeds(self) -> list[Feed]:
        """That of training, and that of evaluation where there is one."""
        return [self.training, *([self.evaluation] if self.evaluation else [])]

    def expect(self, shard: int, graph: Graph) -> None:
        """RunError when a graph begins where no gradient comes, since none was needed at first."""
        needs = self.training.boundaries[shard + 1].needs
        ends = graph.ends if isinstance(graph.ends, Mapping) else {}
        if not all(needs[number] for number in ends):
            raise RunError(
                f"the boundary before shard {shard + 1} needs more gradients than in its first "
                "microbatch; let a tensor between layers need one always or never"
            )

    def note_norms(self, shard: int, norms: Tensor, absent: Absent, flat: Tensor) -> None:
        """The norms of a shard's gradients, without the absent ones, into the task's norm buffer
        (uint8); the last shard of a step also says what they mean for its updates."""
        buffer = Norms(flat, self.host.trainable)
        present = [k for n, k in enumerate(self.host.numbers[shard]) if n not in absent]
        buffer.note(present, norms)
        self._noted[shard] = present
        if present:
            self._norm_dtype = norms.dtype
        if len(self._noted) == sum(bool(one.parameters.trainable) for one in self.host.shards):
            found = sorted(number for numbers in self._noted.values() for number in numbers)
            self._noted.clear()
            scale = self.scale.to(flat.device) if self.scale else None
            buffer.close(found, self._norm_dtype, self.host.task.clip, scale)

    def scaling(self, flat: Tensor | None) -> Scaling | None:
        """The factor for updates in a complete norm buffer; None in a task without norms."""
        if flat is None:
            return None
        buffer = Norms(flat, self.host.trainable)
        return Scaling(buffer.factor, buffer.left_out if self.scale else None)

    def collect(self) -> None:
        """Read the losses that are there."""
        for feed in self.feeds:
            feed.collect()

    def stop(self) -> None:
        """Load no more batches."""
        for feed in self.feeds:
            feed.batches.stop()

    def drop(self) -> None:
        """The task trains no more; let go of what it has beside the host store."""
        self.stop()
        self.graphs.clear()
        self.before.clear()
        self.replicas.clear()

    def settle(self, step: int) -> None:
        """The task's state is in the host store, `step` steps done; from there it can go on."""
        self.host.settle()
        self.replicas.settle()
        self.host.rng_state = self.rng.state(step, 0, 0)
        self.host.loss_scale = self.scale.state() if self.scale else None


class Absences:
    """Which parameters gradients lack, by the address of the gradients (uint8)."""

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
