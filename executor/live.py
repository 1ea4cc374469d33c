"""What lives as long as a run: tasks with their numbers and batches, and the places ops run in."""

import gc
import threading
from collections import deque
from collections.abc import Callable

from torch import Tensor

from executor.batches import Batches
from executor.device import Device, Mark, Meter
from executor.errors import RunError
from executor.flat import Spec
from executor.optimizer import Scaling
from executor.precision import LossScale, Norms
from executor.rng import Guard, Source, TaskRng
from executor.shard import Graph, Shard
from executor.store import HostTask


class LiveTask:
    """A task while it runs: its shards in the store and on devices, its batches and numbers."""

    def __init__(
        self,
        host: HostTask,
        threads: int,
        source: Source,
        on_step: Callable[[str, int, float], None],
    ) -> None:
        plan = host.plan
        self.host = host
        self.plan = plan
        draws = [shard.rng_draws for shard in plan.shards]
        self.rng = TaskRng(host.rng_state, draws, plan.microbatches, source, plan.done)
        self.batches = Batches(plan, host.task, threads, host.staging, self.rng.prepare)
        self.boundaries: dict[tuple[str, int], Spec] = {}  # ("x" or "dx", shard)
        self.graphs: dict[tuple[int, int], Graph] = {}  # (shard, microbatch) between F and B
        self.scale = LossScale(host.loss_scale) if plan.precision == "fp16-autocast" else None
        self._noted: set[int] = set()  # shards whose norms of this step are known
        self._replicas: dict[tuple[int, int], Shard] = {}
        self._unread: deque[tuple[Mark, int, int, Callable[[], float]]] = deque()
        self._losses: dict[int, dict[int, float]] = {}
        self._reading = threading.Lock()
        self._on_step = on_step

    def replica(self, shard: int, place: "Place") -> Shard:
        """The shell that computes this shard on this device."""
        key = shard, place.number
        if key not in self._replicas:
            self._replicas[key] = self.host.shards[shard].replica(place.device.where)
        return self._replicas[key]

    def boundary(self, role: str, shard: int, spec: Spec) -> None:
        """Remember how the boundary before `shard` lies in its buffer; it must never change."""
        known = self.boundaries.setdefault((role, shard), spec)
        if known != spec:
            raise RunError(
                f"the boundary before shard {shard} was {list(known.shape)} and is now "
                f"{list(spec.shape)}; a timetable needs equal shapes"
            )

    def note(self, shard: int, norms: Tensor, flat: Tensor) -> None:
        """The norms of a shard's gradients, into the task's norm buffer (uint8); the last shard of
        a step also says what they mean for its updates."""
        shards = self.host.shards
        buffer = Norms(flat, self.host.trainable)
        buffer.note(sum(len(other.trainable) for other in shards[:shard]), norms)
        self._noted.add(shard)
        if len(self._noted) == sum(bool(shard.trainable) for shard in shards):
            self._noted.clear()
            scale = self.scale.to(flat.device) if self.scale else None
            buffer.close(norms.dtype, self.host.task.clip, scale)

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

    def drop(self) -> None:
        """The task trains no more; let go of what it has beside the host store."""
        self.batches.stop()
        self.graphs.clear()
        self._replicas.clear()

    def settle(self, step: int) -> None:
        """The task's state is in the host store, `step` steps done; from there it can go on."""
        self.host.settle()
        self.host.rng_state = self.rng.state(step, 0, 0)
        self.host.loss_scale = self.scale.state() if self.scale else None

    def collect(self) -> None:
        """Read the losses that are there; a step is reported when all its parts are."""
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
