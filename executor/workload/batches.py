"""Batches, made ahead of time: a thread per task calls the user's `data` and cuts microbatches."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from msgspec.structs import replace
from torch import Tensor

from executor.devices import Mark, until, use_threads
from executor.errors import RunError, one_line
from executor.numerics import Layout, OwnRandomness, hold, mapped, tensors_of
from executor.workload.contents import Content, Share, Weigh, shares
from executor.workload.loss import Batch
from executor.workload.task import Evaluation, Task
from plans.schema import Task as PlanTask
from plans.timing import scaled
from profiles.schema import Counts

AHEAD = 2  # steps prepared beyond the newest one asked for
ROOM = AHEAD + 2  # steps there is staging memory for: the newest, and one on its way to the device


class Packed(Protocol):
    """The steps of a task whose samples have lengths, see `steps.Steps`."""

    def tokens(self, step: int) -> Sequence[int]:
        """The most tokens of each of the step's microbatches."""

    def packed(self, step: int, wanted: Collection[int]) -> dict[int, tuple[Batch, Share]]:
        """Those of the step's microbatches that are `wanted`, each with its share of the loss."""


class Staged(NamedTuple):
    """A microbatch in host memory, and what is known of its inputs and targets there."""

    flat: Tensor
    content: Content


class Batches:
    """The microbatches of one task, step after step, each one flat: inputs, then targets.

    `staging` is host memory of staging_bytes(plan), where a microbatch stays until its copy to the
    device is done. `prepare(step)` is called in the loading thread before the data of each step;
    `called` says how errors name the call for it. steps: of a task whose samples have lengths.
    """

    def __init__(
        self,
        plan: PlanTask,
        task: Task,
        threads: int,
        staging: Tensor,
        prepare: Callable[[int], None],
        called: Callable[[int], str] = "data({})".format,
        steps: Packed | None = None,
    ) -> None:
        self._layouts: tuple[Layout, Layout] | None = None  # where all microbatches are alike
        self._steps = steps
        self._plan = plan
        self._task = task
        self._staging = staging
        self._wanted: Callable[[int], Collection[int]] = lambda step: range(plan.microbatches)
        self._threads = threads
        self._prepare = prepare
        self._called = called
        self._changed = threading.Condition()
        self._ready: dict[int, dict[int, Staged]] = {}
        self._rooms = torch.chunk(staging, ROOM)  # step after step, in turn
        self._loaded: dict[int, int] = {}  # microbatches of the latest steps
        self._copies: defaultdict[int, list[Mark]] = defaultdict(list)  # of those of a step
        self._newest = plan.done - 1
        self._failure: str | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def share(self, first: int, count: int, wanted: Callable[[int], Collection[int]]) -> "Batches":
        """So many batches from step `first` on, of each of which only those microbatches are kept
        that are `wanted`, all of which are to be taken; this one loads no more."""
        self.stop()
        plan = replace(self._plan, done=first, steps=count)
        own = self._task, self._threads, self._staging, self._prepare, self._called, self._steps
        made = Batches(plan, *own)
        made._layouts, made._wanted = self._layouts, wanted
        return made

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

    def take(self, step: int, microbatch: int) -> Staged:
        """The microbatch, once only. RunError if data failed."""
        with self._changed:
            self._newest = max(self._newest, step)
            self._changed.notify_all()
            self._changed.wait_for(lambda: step in self._ready or self._failure or self._stopped)
            if step not in self._ready:
                raise RunError(self._failure or "stopped")
            staged = self._ready[step].pop(microbatch)
            if not self._ready[step]:
                del self._ready[step]
            return staged

    def sent(self, step: int, end: Mark) -> None:
        """A microbatch of the step is copied when `end` is reached; when all are, their memory is
        free."""
        with self._changed:
            self._copies[step].append(end)
            self._changed.notify_all()

    def _room(self, step: int) -> Tensor:
        """Memory for a step's microbatches; waits until those before are copied. RunError when
        stopped."""
        before = step - ROOM
        with self._changed:
            count = self._loaded.pop(before, 0)
            self._changed.wait_for(lambda: len(self._copies[before]) == count or self._stopped)
            copies = self._copies.pop(before)
        self._check()
        for copied in copies:
            until(copied, self._check)
        return self._rooms[step % ROOM]

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
                flats = self._staged(step)
            except BaseException as error:  # sys.exit in data() must not stall the run
                text = str(error) if isinstance(error, RunError) else one_line(error)
                with self._changed:
                    self._failure = f"task {self._task.name}: {self._called(step)}: {text}"
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready[step], self._loaded[step] = flats, len(flats)
                self._changed.notify_all()

    def _microbatches(self, step: int) -> Iterator[tuple[int, Batch, Share]]:
        """Those of a step that are wanted, each with its share of the loss."""
        if self._steps:
            with OwnRandomness():
                packed = self._steps.packed(step, self._wanted(step))
            for m, (batch, share) in packed.items():
                yield m, batch, share
            return
        whole, size = self._batch(step), self._plan.microbatch
        parts = [part(whole, m * size, size) for m in range(self._plan.microbatches)]
        with OwnRandomness():
            every = shares(weight_function(self._task, self._plan.parts.counts), whole, parts)
        for m in sorted(self._wanted(step)):
            yield m, parts[m], every[m]

    def _batch(self, step: int) -> Batch:
        with OwnRandomness():
            batch = batch_of(self._task, step)
        for what, value in (("inputs", batch.inputs), ("targets", batch.targets)):
            for tensor in tensors_of(value):
                if len(tensor) != self._plan.batch:
                    raise RunError(
                        f"returned {len(tensor)} {what}, the plan has a batch of {self._plan.batch}"
                    )
        return batch

    def _staged(self, step: int) -> dict[int, Staged]:
        """A step's microbatches, one behind the other."""
        made, room, begin = {}, self._room(step), 0
        for m, batch, share in self._microbatches(step):
            flat, layouts = self._pack(step, m, batch, room[begin:])
            made[m] = Staged(flat, Content(layouts, share))
            begin += len(made[m].flat)
        return made

    def _pack(
        self, step: int, microbatch: int, batch: Batch, room: Tensor
    ) -> tuple[Tensor, tuple[Layout, Layout]]:
        x, y = (hold(value) for value in batch)
        layouts = (x.layout, y.layout)
        size, most = sum(layout.bytes for layout in layouts), self._plan.batch_bytes
        if self._steps:
            most = scaled(most, self._steps.tokens(step)[microbatch], self._plan.microbatch)
        elif layouts != (known := self._layouts or layouts):
            raise RunError(changed(known, layouts))
        if size > most or (size < most and not self._steps):
            raise RunError(
                f"a microbatch has {size} bytes, the plan {most}; profile and build again"
            )
        self._layouts, flat = layouts, room[:size]
        x.layout.write(flat, x.tensors)
        y.layout.write(flat[x.layout.bytes :], y.tensors)
        return flat, layouts


def batch_of(task: Task, step: int) -> Batch:
    """The batch that the task's data gives for a step, detached. RunError when it has none or
    another form; whatever else data raises goes on."""
    given, why = None, "returned None"
    try:
        given = task.data(step)
    except (IndexError, StopIteration) as error:
        why = one_line(error)
    if given is None:
        raise RunError(
            f"{why}: there is no batch of step {step}, and the task has {task.steps} steps; lower "
            "them or let the data begin again"
        )
    if task.loss is None:
        batch = Batch(given, None)
    elif isinstance(given, tuple | list) and len(given) == 2:
        batch = Batch(*given)
    else:
        raise RunError("returned something else than two tensors; return inputs and targets")
    inputs = dict(batch.inputs) if isinstance(batch.inputs, Mapping) else batch.inputs
    tensors = batch._replace(inputs=inputs).tensors
    if not tensors_of(inputs) or not all(tensor.dim() and len(tensor) for tensor in tensors):
        raise RunError(
            "returned something else than two tensors; return some, batch first and not empty"
        )
    return Batch(mapped(Tensor.detach, inputs), mapped(Tensor.detach, batch.targets))


def weight_function(task: Task, counts: Counts | None) -> Weigh | None:
    """The function that gives the weight of a batch: the task's `weight`, or the counting that the
    profile found. None where all samples count the same."""
    if (weight := task.weight) is None:
        return counting(counts) if counts else None
    return lambda batch: weight(batch.inputs if task.loss is None else tuple(batch))


def counting(counts: Counts) -> Weigh:
    """A function that counts the targets of a batch that have a loss."""

    def weigh(batch: Batch) -> Tensor:
        target = batch.tensors[counts.tensor]
        return (target[..., int(counts.shifted) :] != counts.ignored).sum()

    return weigh


def part(batch: Batch, start: int, size: int) -> Batch:
    """So many samples of a batch."""
    return Batch(*(mapped(lambda t: t[start : start + size], value) for value in batch))


def batch_bytes(batch: Batch) -> int:
    """Bytes of a microbatch in its flat."""
    return sum(hold(value).layout.bytes for value in batch)


def changed(known: tuple[Layout, Layout], now: tuple[Layout, Layout]) -> str:
    """In which way the inputs and targets of a later batch are others."""
    pairs = zip(("inputs", "targets"), known, now, strict=True)
    return next(f"{what} {a.difference(b)}" for what, a, b in pairs if a != b)


def staging_bytes(plan: PlanTask, tokens: int = 0) -> int:
    """Bytes of host memory in which a task's microbatches are prepared, and as many in which those
    of its evaluation are. tokens: the most of a step, where samples have lengths."""
    step = plan.microbatches * plan.batch_bytes
    if plan.lengths:
        step = scaled(plan.batch_bytes, tokens, plan.microbatch)
    return (2 if plan.evaluation else 1) * ROOM * step


def held_batch(layouts: tuple[Layout, Layout], flat: Tensor) -> Batch:
    """The microbatch in a batch buffer."""
    inputs, targets = layouts
    return Batch(inputs.whole(inputs.read(flat)), targets.whole(targets.read(flat[inputs.bytes :])))


def data_by_number(evaluation: Evaluation, count: int) -> Callable[[int], Any]:
    """The data by the number of a batch in all evaluations, of so many batches each."""

    def data(number: int) -> Any:
        try:
            return evaluation.data(number % count)
        except (IndexError, StopIteration) as error:
            raise RunError(
                f"{one_line(error)}: there is no such batch, and an evaluation has {count}"
            ) from None

    return data
