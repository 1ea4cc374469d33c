"""What lives as long as a run: tasks with their numbers and batches, and the places ops run in."""

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from executor.batches import Batches
from executor.buffers import Buffers, Snapshot
from executor.device import Device, Mark, Meter
from executor.errors import RunError
from executor.evaluation import LiveEvaluation
from executor.graphs import Graph
from executor.optimizer import Scaling
from executor.parameters import NONE, Absent
from executor.precision import LossScale, Norms
from executor.rng import Guard, Source, TaskRng
from executor.shard import Shard
from executor.store import HostTask
from executor.values import Grads, Layout


class LiveTask:
    """A task while it runs: its shards in the store and on devices, its batches and numbers."""

    def __init__(
        self,
        host: HostTask,
        threads: int,
        source: Source,
        on_step: Callable[[str, int, float], None],
        on_evaluation: Callable[[str, int, float], None] = lambda task, step, loss: None,
    ) -> None:
        plan = host.plan
        self.host = host
        self.plan = plan
        draws = [shard.rng_draws for shard in plan.shards]
        self.rng = TaskRng(host.rng_state, draws, plan.microbatches, source, plan.done)
        self.batches = Batches(plan, host.task, threads, host.staging, self.rng.prepare)
        self.evaluation = (
            LiveEvaluation(plan, host.task, threads, host.evaluation_staging, on_evaluation)
            if plan.evaluation
            else None
        )
        self.boundaries: dict[int, Layout] = {}  # how the one before each shard lies in its buffer
        self.graphs: dict[tuple[int, int], Graph] = {}  # (shard, microbatch) between F and B
        self.before: dict[tuple[int, int], Snapshot | None] = {}  # the same, where it runs again
        self.gradients: dict[tuple[int, int], Grads] = {}  # of boundaries, from one B to the next
        self._absent: dict[int, Absent] = {}  # by the address of the gradients
        self._last: dict[int, tuple[int, Place]] = {}  # microbatch, of shards that change buffers
        self.scale = LossScale(host.loss_scale) if plan.precision == "fp16-autocast" else None
        self._noted: dict[int, Sequence[int]] = {}  # parameters whose norms are known, by shard
        self._norm_dtype = torch.float32
        self._replicas: dict[tuple[int, int], Shard] = {}
        self._unread: deque[tuple[Mark, int, int, Callable[[], float]]] = deque()
        self._losses: dict[int, dict[int, float]] = {}
        self._reading = threading.Lock()
        self._learning = threading.Lock()
        self._on_step = on_step

    def replica(self, shard: int, place: "Place") -> Shard:
        """The shell that computes this shard on this device."""
        key = shard, place.number
        if key not in self._replicas:
            device = place.device
            self._replicas[key] = self.host.shards[shard].replica(
                device.where, apart=device.spec.kind != "cpu"
            )
        return self._replicas[key]

    def boundary(self, shard: int, layout: Layout) -> None:
        """Remember how the boundary before `shard` lies in its buffer; it must never change."""
        known = self.boundaries.setdefault(shard, layout)
        if known is not layout and known != layout:
            raise RunError(f"the boundary before shard {shard} {known.difference(layout)}")

    def expect(self, shard: int, graph: Graph) -> None:
        """RunError when a graph begins where no gradient comes, since none was needed at first."""
        needs = self.boundaries[shard + 1].needs
        ends = graph.ends if isinstance(graph.ends, Mapping) else {}
        if not all(needs[number] for number in ends):
            raise RunError(
                f"the boundary before shard {shard + 1} needs more gradients than in its first "
                "microbatch; let a tensor between layers need one always or never"
            )

    def turn(self, shard: int, microbatch: int, place: "Place") -> AbstractContextManager[object]:
        """Around a forward that counts. RunError if it changes buffers, and not in the order of the
        plain loop; as long as it is not known whether it does, one device at a time finds out."""
        buffers = self._replicas[shard, place.number].buffers
        return self._turn(shard, microbatch, place, buffers) if buffers.any else nullcontext()

    @contextmanager
    def _turn(
        self, shard: int, microbatch: int, place: "Place", buffers: Buffers
    ) -> Iterator[None]:
        with self._learning if buffers.found.numbers is None else nullcontext():
            if buffers.changing:
                self._expect_turn(shard, microbatch, place, buffers)
                self._last[shard] = microbatch, place
                yield
                return
            yield
            if buffers.changing:
                self._expect_turn(shard, microbatch, place, buffers)
                self._last[shard] = microbatch, place

    def _expect_turn(self, shard: int, microbatch: int, place: "Place", buffers: Buffers) -> None:
        if microbatch and self._last.get(shard) != (microbatch - 1, place):
            raise RunError(
                f"changes its buffer {buffers.changing[0].name} in each forward, so one device has "
                "to run its microbatches in turn, and the plan has them elsewhere or in another "
                "order; build with fewer devices for this task"
            )

    def absent_in(self, flat: Tensor) -> Absent:
        """The parameters without a gradient in these gradients (uint8)."""
        return self._absent.get(flat.data_ptr(), NONE) if self._absent else NONE

    def note_absent(self, flat: Tensor, absent: Absent) -> None:
        """These gradients were written, all but those of the absent parameters."""
        if absent:
            self._absent[flat.data_ptr()] = absent
        elif self._absent:
            self._absent.pop(flat.data_ptr(), None)

    def carry(self, source: Tensor, target: Tensor) -> None:
        """What was copied lies elsewhere as well."""
        if self._absent:
            self.note_absent(target, self.absent_in(source))

    def note(self, shard: int, norms: Tensor, absent: Absent, flat: Tensor) -> None:
        """The norms of a shard's gradients, without the absent ones, into the task's norm buffer
        (uint8); the last shard of a step also says what they mean for its updates."""
        shards = self.host.shards
        buffer = Norms(flat, self.host.trainable)
        numbers = self.host.numbers[shard]
        present = [number for n, number in enumerate(numbers) if n not in absent]
        buffer.note(present, norms)
        self._noted[shard] = present
        if present:
            self._norm_dtype = norms.dtype
        if len(self._noted) == sum(bool(shard.trainable) for shard in shards):
            found = sorted(number for numbers in self._noted.values() for number in numbers)
            self._noted.clear()
            scale = self.scale.to(flat.device) if self.scale else None
            buffer.close(found, self._norm_dtype, self.host.task.clip, scale)

    def scaling(self, flat: Tensor | None) -> Scaling | None:
        """What a complete norm buffer says; None in a task that has none."""
        if flat is None:
            return None
        buffer = Norms(flat, self.host.trainable)
        return Scaling(buffer.factor, buffer.left_out if self.scale else None)

    def loss(self, step: int, microbatch: int, read: Callable[[], float], end: Mark) -> None:
        """Note a microbatch's part of the loss, which can be read when `end` is reached."""
        self._unread.append((end, step, microbatch, read))
        self.collect()

    def stop(self) -> None:
        """Load no more batches."""
        self.batches.stop()
        if self.evaluation:
            self.evaluation.batches.stop()

    def drop(self) -> None:
        """The task trains no more; let go of what it has beside the host store."""
        self.stop()
        self.graphs.clear()
        self.before.clear()
        self._replicas.clear()

    def settle(self, step: int) -> None:
        """The task's state is in the host store, `step` steps done; from there it can go on."""
        self.host.settle()
        self._settle_buffers()
        self.host.rng_state = self.rng.state(step, 0, 0)
        self.host.loss_scale = self.scale.state() if self.scale else None

    def _settle_buffers(self) -> None:
        """Bring what forwards have changed on a device to the model, and to all other replicas."""
        for number, (_, place) in self._last.items():
            latest, host = self._replicas[number, place.number], self.host.shards[number]
            host.buffers.copy_from(latest.buffers)
            for (shard, _), other in self._replicas.items():
                if shard == number and other is not latest:
                    other.buffers.copy_from(host.buffers)
        self._last.clear()

    def collect(self) -> None:
        """Read the losses that are there; a step is reported when all its parts are."""
        if self.evaluation:
            self.evaluation.collect()
        with self._reading:
            while self._unread and self._unread[0][0].ready():
                _, step, microbatch, read = self._unread.popleft()
                parts = self._losses.setdefault(step, {})
                parts[microbatch] = read()
                if len(parts) == self.plan.microbatches:
                    del self._losses[step]
                    self._on_step(self.plan.name, step, sum(parts[m] for m in sorted(parts)))


class Place:
    """Where an op runs: a device, its number in the plan, and the bytes seen in use there.

    peak_bytes: most of slab and transients together; slab_bytes: end of the last byte touched.
    `alone`: no other device of the process draws from the same generator.
    """

    def __init__(self, number: int, device: Device, guard: Guard, alone: bool) -> None:
        self.number = number
        self.device = device
        self.guard = guard
        self.alone = alone
        self.peak_bytes = 0
        self.slab_bytes = 0
        self.late_allocations = 0  # after a segment's first rounds
        self._warm: int | None = None
        self._meter: Meter | None = None

    @property
    def meter(self) -> Meter:
        """Made when the first op is measured: what libraries keep for a thread is there by then."""
        self._meter = self._meter or self.device.meter()
        return self._meter

    def renew(self) -> None:
        """A segment was stopped here: whatever it has left behind counts as nothing from now on."""
        gc.collect()  # of failed ops, frames and graphs may hold each other
        self._meter = self._warm = None

    def begin(self) -> None:
        """Another segment begins: what is on the device now is none of its ops'."""
        self._meter = None

    def warmed_up(self) -> None:
        """The first rounds of a segment are launched; from now on nothing should be new."""
        self._warm = self.device.allocations()

    def left(self) -> None:
        """The segment's rounds are launched."""
        if self._warm is not None:
            self.late_allocations += self.device.allocations() - self._warm
        self._warm = None

    def took(self, count: int) -> None:
        """So many bytes of the device were in use at once."""
        self.peak_bytes = max(self.peak_bytes, count)

    def touched(self, end: int) -> None:
        """The slab was used up to this byte."""
        self.slab_bytes = max(self.slab_bytes, end)
