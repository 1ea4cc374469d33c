"""What each kind of op does, once its turn has come: one function per kind, found in a table.

Nothing here waits or decides. An op gets its buffers as uint8 tensors of the value's exact size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.batches import Batches, inputs_of, targets_of
from executor.device import CpuDevice
from executor.errors import RunError
from executor.flat import Spec, view
from executor.meter import MemoryMeter
from executor.rng import Guard, LentGenerator, RandomMode, TaskRng, no_draws
from executor.shard import Graph, Shard
from executor.store import HostTask
from plans.capacity import value_bytes
from plans.schema import Memory, Op, OpName, Role, parse_id

_NOTHING = torch.empty(0, dtype=torch.uint8)


class LiveTask:
    """A task while it runs: its shards in the store and on devices, its batches and numbers."""

    def __init__(self, host: HostTask, threads: int, on_step: Callable[[str, int, float], None]):
        plan = host.plan
        self.host = host
        self.plan = plan
        self.rng = TaskRng(host.rng_state, [s.rng_draws for s in plan.shards], plan.microbatches)
        self.batches = Batches(plan, host.task, threads, self.rng.prepare)
        self.boundaries: dict[tuple[str, int], Spec] = {}  # ("x" or "dx", shard)
        self.graphs: dict[tuple[int, int], Graph] = {}  # (shard, microbatch) between F and B
        self._replicas: dict[tuple[int, int], Shard] = {}
        self._losses: dict[int, dict[int, float]] = {}
        self._on_step = on_step

    def replica(self, shard: int, device: int) -> Shard:
        """The shell that computes this shard on this device."""
        if (shard, device) not in self._replicas:
            self._replicas[shard, device] = self.host.shards[shard].replica()
        return self._replicas[shard, device]

    def boundary(self, role: str, shard: int, spec: Spec) -> None:
        """Remember how the boundary before `shard` lies in its buffer; it must never change."""
        known = self.boundaries.setdefault((role, shard), spec)
        if known != spec:
            raise RunError(
                f"the boundary before shard {shard} was {list(known.shape)} and is now "
                f"{list(spec.shape)}; a timetable needs equal shapes"
            )

    def loss(self, step: int, microbatch: int, value: float) -> None:
        """Note a microbatch's part of the loss; the step is reported when all are there."""
        parts = self._losses.setdefault(step, {})
        parts[microbatch] = value
        if len(parts) == self.plan.microbatches:
            del self._losses[step]
            self._on_step(self.plan.name, step, sum(parts[m] for m in sorted(parts)))


class Place:
    """Where an op runs: a device, its number in the plan, and the bytes seen in use there.

    peak_bytes: most of slab and transients together; slab_bytes: end of the last byte touched.
    `alone`: no other device computes in this run.
    """

    def __init__(self, number: int, device: CpuDevice, guard: Guard, alone: bool) -> None:
        self.number = number
        self.device = device
        self.guard = guard
        self.alone = alone
        self.peak_bytes = 0
        self.slab_bytes = 0
        self.graphs: dict[tuple[str, int, int], MemoryMeter] = {}  # those alive and measured

    def took(self, count: int) -> None:
        """So many bytes of the device were in use at once."""
        self.peak_bytes = max(self.peak_bytes, count)

    def touched(self, end: int) -> None:
        """The slab was used up to this byte."""
        self.slab_bytes = max(self.slab_bytes, end)


@dataclass(frozen=True)
class Work:
    """One op of a segment with everything it touches. `first_step` is its step in round 0."""

    op: Op
    name: OpName
    task: LiveTask
    place: Place
    first_step: int
    memory: Memory  # of the device, while this program runs there
    metered: bool  # measure transients in round 0
    reads: Mapping[str, Tensor]
    writes: Mapping[str, Tensor]

    def run(self, round_index: int) -> None:
        """Do the op for this round."""
        handler = _HANDLERS[self.name.kind]
        if not self.is_metered(round_index):
            handler(self, self.first_step + round_index)
            return
        name = self.name
        key = self.task.plan.name, name.number, name.index
        kept = self.place.graphs.pop(key, None) if name.kind == "B" else None
        meter = kept or MemoryMeter()
        others = sum(graph.live_bytes for graph in self.place.graphs.values())
        with meter.restart():
            handler(self, self.first_step)
        if name.kind == "F" and self.activations != "recompute":
            self.place.graphs[key] = meter
        taken = others + meter.peak_bytes
        self.place.took(self.memory.slab_bytes + taken)
        if taken > self.memory.reserve_bytes:
            live = f", {others} of them in other live graphs," if others else ""
            raise RunError(
                f"took {taken} bytes beside its buffers{live} but its program reserves "
                f"{self.memory.reserve_bytes} on device {self.place.number}; "
                "profile again or lower the microbatch"
            )

    def is_metered(self, round_index: int) -> bool:
        """Whether this op's transients are measured in this round."""
        return self.metered and round_index == 0 and self.op.stream.endswith("compute")

    @property
    def activations(self) -> str:
        """What the op's shard keeps between forward and backward."""
        return self.task.plan.shards[self.name.number].activations

    def source(self, role: str) -> Tensor:
        """The bytes that play `role`; none when the value is empty."""
        return self.reads.get(role, _NOTHING)


def resolve(
    op: Op,
    task: LiveTask,
    place: Place,
    first_step: int,
    memory: Memory,
    metered: bool,
    flats: Mapping[str, Tensor],
) -> Work:
    """The op with its buffers, found by name and cut to the bytes of the value in each role."""
    name = parse_id(op.id)

    def cut(roles: Mapping[Role, str]) -> dict[str, Tensor]:
        return {r: flats[b][: value_bytes(name, r, task.plan)] for r, b in roles.items()}

    if name.kind in "FB":
        task.replica(name.number, place.number)
    place.took(memory.slab_bytes)
    return Work(op, name, task, place, first_step, memory, metered, cut(op.reads), cut(op.writes))


@contextmanager
def _random(work: Work, step: int) -> Iterator[None]:
    """Draw what the plain loop draws in this forward, and prove it afterwards.

    A shard that draws nothing is spared the cost of a mode, and one that is alone with the
    generator as well, except where ops are metered anyway: there an unannounced draw is found in
    the very op that made it.
    """
    task, name = work.task, work.name
    state = task.rng.state(step, name.index, name.number)
    metered = work.is_metered(step - work.first_step)
    if task.plan.shards[name.number].rng_draws == 0 and not metered:
        yield
    else:
        alone = work.place.alone and not metered
        with LentGenerator(state) if alone else RandomMode(state) as mode:
            yield
        state = mode.state
    task.rng.finish(step, name.index, name.number, state)


@contextmanager
def _no_random(work: Work, step: int) -> Iterator[None]:
    """A backward must not draw: found as it does where ops are metered anyway, else afterwards."""
    if work.is_metered(step - work.first_step):
        with no_draws():
            yield
    else:
        yield
    work.place.guard.check()


def _input(work: Work) -> Tensor:
    if work.name.number == 0:
        return inputs_of(work.task.batches, work.source("batch"))
    return view(work.source("x"), work.task.boundaries["x", work.name.number])


def _forward(work: Work, step: int) -> None:
    task, number = work.task, work.name.number
    shard = task.replica(number, work.place.number)
    shard.bind_params(work.source("param"))
    x, out = _input(work), work.writes["y"]
    with _random(work, step):
        if work.activations == "recompute":
            spec = shard.forward(x, out)
        else:
            saved = work.writes.get("saved", _NOTHING) if work.activations == "offload" else None
            spec, graph = shard.forward_graph(x, out, dx=number > 0, saved=saved)
            task.graphs[number, work.name.index] = graph
    work.place.guard.check()
    task.boundary("x", number + 1, spec)


def _backward(work: Work, step: int) -> None:
    task, number = work.task, work.name.number
    shard = task.replica(number, work.place.number)
    shard.bind_params(work.source("param"))
    shard.bind_grads(work.writes.get("grad", _NOTHING))
    graph, dy = _graph(work, shard, step), None
    if number < len(task.plan.shards) - 1:
        dy = view(work.source("dy"), task.boundaries["dx", number + 1])
    with _no_random(work, step):
        done = shard.backward(graph, dy=dy, dx=work.writes.get("dx"), add="grad" in work.reads)
    if done.dx is not None:
        task.boundary("dx", number, done.dx)
    if done.loss is not None:
        task.loss(step, work.name.index, done.loss)


def _graph(work: Work, shard: Shard, step: int) -> Graph:
    """The graph that the forward left, or one made by running it again."""
    task, number = work.task, work.name.number
    x = _input(work)
    if work.activations != "recompute":
        graph = task.graphs.pop((number, work.name.index))
        shard.move(graph, x, work.source("saved"))
        return graph
    last = number == len(task.plan.shards) - 1
    targets = targets_of(task.batches, work.source("batch")) if last else None
    with _random(work, step):
        return shard.graph(x, dx="dx" in work.writes, targets=targets)


def _update(work: Work, step: int) -> None:
    shard = work.task.host.shards[work.name.number]
    shard.update(work.source("param"), work.source("grad"), work.reads.get("state"))


def _prefetch(work: Work, step: int) -> None:
    (role,) = work.writes
    if role == "batch":
        batch = work.task.batches.take(step, work.name.index)
        work.place.device.copy_in(work.writes[role], batch)
    else:
        work.place.device.copy_in(work.writes[role], work.reads[role])


def _spill(work: Work, step: int) -> None:
    (role,) = work.writes
    work.place.device.copy_out(work.writes[role], work.reads[role])


def _reduce(work: Work, step: int) -> None:
    if "grad" in work.writes:
        shard = work.task.host.shards[work.name.number]
        shard.add_grads(work.writes["grad"], work.source("other"))


_HANDLERS: dict[str, Callable[[Work, int], None]] = {
    "F": _forward,
    "B": _backward,
    "U": _update,
    "R": _reduce,
    "P": _prefetch,
    "S": _spill,
    "X": _spill,
}
