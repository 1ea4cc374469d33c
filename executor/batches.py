"""Batches, made ahead of time: a thread per task calls the user's `data` and cuts microbatches."""

import threading
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from executor.device import Mark, until, use_threads
from executor.errors import RunError, one_line
from executor.flat import Spec, spec_of, view
from executor.rng import OwnRandomness
from executor.workload import Task
from plans.schema import Task as PlanTask
from profiles.codec import align

AHEAD = 2  # steps prepared beyond the newest one asked for
ROOM = AHEAD + 2  # steps there is staging memory for: the newest, and one on its way to the device


class Batches:
    """The microbatches of one task, step after step, each one flat: inputs, then targets.

    `staging` is host memory of staging_bytes(plan), where a microbatch stays until its copy to the
    device is done. `specs` says how a flat's inputs and targets lie in it; known once a flat was
    taken.
    `prepare(step)` is called in the loading thread before the data of each step.
    """

    def __init__(
        self,
        plan: PlanTask,
        task: Task,
        threads: int,
        staging: Tensor,
        prepare: Callable[[int], None],
    ) -> None:
        self.specs: tuple[Spec, Spec] | None = None
        self._plan = plan
        self._task = task
        self._threads = threads
        self._prepare = prepare
        self._changed = threading.Condition()
        self._ready: dict[int, dict[int, Tensor]] = {}
        places = torch.split(staging, plan.batch_bytes)
        self._free: deque[tuple[Tensor, Mark | None]] = deque((flat, None) for flat in places)
        self._newest = plan.done - 1
        self._failure: str | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to load; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._load, daemon=True, name=self._task.name)
            self._thread.start()

    def stop(self) -> None:
        """Load no more; whoever waits in `take` gets an error."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def take(self, step: int, microbatch: int) -> Tensor:
        """The microbatch's bytes (uint8, batch_bytes), once only. RunError if data failed."""
        with self._changed:
            self._newest = max(self._newest, step)
            self._changed.notify_all()
            self._changed.wait_for(lambda: step in self._ready or self._failure or self._stopped)
            if step not in self._ready:
                raise RunError(self._failure or "stopped")
            flat = self._ready[step].pop(microbatch)
            if not self._ready[step]:
                del self._ready[step]
            return flat

    def sent(self, flat: Tensor, end: Mark) -> None:
        """A microbatch that was taken is copied when `end` is reached; its memory is free then."""
        with self._changed:
            self._free.append((flat, end))
            self._changed.notify_all()

    def _place(self) -> Tensor:
        """Memory for a microbatch; waits until there is some. RunError when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._stopped)
            if self._stopped:
                raise RunError("stopped")
            flat, copied = self._free.popleft()
        if copied is not None:
            until(copied, self._check)
        return flat

    def _check(self) -> None:
        if self._stopped:
            raise RunError("stopped")

    def _load(self) -> None:
        use_threads(self._threads)
        for step in range(self._plan.done, self._plan.done + self._plan.steps):
            with self._changed:
                self._changed.wait_for(lambda s=step: s <= self._newest + AHEAD or self._stopped)  # type: ignore[misc]
                if self._stopped:
                    return
            try:
                self._prepare(step)
                flats = dict(enumerate(self._cut(*self._batch(step))))
            except BaseException as error:  # sys.exit in data() must not stall the run
                text = str(error) if isinstance(error, RunError) else one_line(error)
                with self._changed:
                    self._failure = f"task {self._task.name}: data({step}): {text}"
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready[step] = flats
                self._changed.notify_all()

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        with OwnRandomness():
            pair = self._task.data(step)
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in pair)
        ):
            raise RunError("returned something else than two tensors, batch first")
        for what, tensor in zip(("inputs", "targets"), pair, strict=True):
            if len(tensor) != self._plan.batch:
                raise RunError(
                    f"returned {len(tensor)} {what}, the plan has a batch of {self._plan.batch}"
                )
        return pair[0].detach(), pair[1].detach()

    def _cut(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        count = self._plan.microbatches
        pairs = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        return [self._pack(x, y) for x, y in pairs]

    def _pack(self, x: Tensor, y: Tensor) -> Tensor:
        specs = (spec_of(x), spec_of(y))
        if self.specs is None:
            self.specs = specs
        if specs != self.specs:
            raise RunError(
                f"shapes {list(x.shape)}, {list(y.shape)} differ from those before, "
                f"{list(self.specs[0].shape)}, {list(self.specs[1].shape)}; a timetable needs equal"
            )
        size = sum(align(spec.bytes) for spec in specs)
        if size != self._plan.batch_bytes:
            raise RunError(
                f"a microbatch has {size} bytes, the plan {self._plan.batch_bytes}; "
                "profile and build again"
            )
        flat = self._place()
        view(flat, specs[0]).copy_(x)
        view(flat, specs[1], align(specs[0].bytes)).copy_(y)
        return flat


def staging_bytes(plan: PlanTask) -> int:
    """Bytes of host memory in which a task's microbatches are prepared."""
    return ROOM * plan.microbatches * plan.batch_bytes


def inputs_of(batches: Batches, flat: Tensor) -> Tensor:
    """The inputs in a batch buffer."""
    assert batches.specs is not None
    return view(flat, batches.specs[0])


def targets_of(batches: Batches, flat: Tensor) -> Tensor:
    """The targets in a batch buffer."""
    assert batches.specs is not None
    return view(flat, batches.specs[1], align(batches.specs[0].bytes))
