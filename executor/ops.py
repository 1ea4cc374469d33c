"""What each kind of op does, once its turn has come: one function per kind, found in a table.

Nothing here waits or decides. An op gets its buffers as uint8 tensors of the value's exact size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from executor.batches import inputs_of, targets_of
from executor.device import Mark
from executor.errors import RunError
from executor.flat import view
from executor.live import LiveTask, Place
from executor.rng import LentGenerator, RandomMode, no_draws
from executor.shard import Graph, Shard
from plans.capacity import value_bytes
from plans.schema import Memory, Op, OpName, Role, parse_id

_NOTHING = torch.empty(0, dtype=torch.uint8)

Told = Callable[[Mark], None]  # called with the mark behind the op that asked for it


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

    def run(self, round_index: int) -> Told:
        """Launch the op for this round; what to call with the mark behind it."""
        handler = _HANDLERS[self.name.kind]
        if not self.is_metered(round_index):
            return handler(self, self.first_step + round_index) or _untold
        kind, key = self.name.kind, (self.task.plan.name, self.name.number, self.name.index)
        makes = key if kind == "F" and self.activations != "recompute" else None
        meter = self.place.meter
        with meter.op(makes, key if kind == "B" else None):
            told = handler(self, self.first_step)
        self.place.took(self.memory.slab_bytes + meter.taken_bytes)
        if meter.taken_bytes > self.memory.reserve_bytes + self.place.device.slack_bytes:
            live = f", {meter.graph_bytes} of them in live graphs," if meter.graph_bytes else ""
            raise RunError(
                f"took {meter.taken_bytes} bytes beside its buffers{live} but its program reserves "
                f"{self.memory.reserve_bytes} on device {self.place.number}; "
                "profile again or lower the microbatch"
            )
        return told or _untold

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


def _untold(end: Mark) -> None:
    """Most ops have nobody to tell."""


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
        task.replica(name.number, place)
    place.took(memory.slab_bytes)
    return Work(op, name, task, place, first_step, memory, metered, cut(op.reads), cut(op.writes))


@contextmanager
def _random(work: Work, step: int) -> Iterator[None]:
    """Draw what the plain loop draws in this forward, and prove it afterwards.

    A shard that draws nothing is spared the cost of a mode, and one that is alone with the
    generator as well, except where ops are metered anyway: there an unannounced draw is found in
    the very op that made it.
    """
    task, name, source = work.task, work.name, work.place.device.source
    state = task.rng.state(step, name.index, name.number)
    watched = source.shared and work.is_metered(step - work.first_step)
    if task.plan.shards[name.number].rng_draws == 0 and not watched:
        yield
    else:
        alone = work.place.alone and not watched
        with LentGenerator(state, source) if alone else RandomMode(state) as mode:
            yield
        state = mode.state
    task.rng.finish(step, name.index, name.number, state)


@contextmanager
def _no_random(work: Work, step: int) -> Iterator[None]:
    """A backward must not draw: found as it does where ops are metered anyway, else afterwards."""
    metered = work.is_metered(step - work.first_step)
    watch: AbstractContextManager[object] = nullcontext()
    if work.place.device.source.shared and metered:
        watch = no_draws()
    with watch:
        yield
    work.place.guard.check()


def _input(work: Work) -> Tensor:
    if work.name.number == 0:
        return inputs_of(work.task.batches, work.source("batch"))
    return view(work.source("x"), work.task.boundaries["x", work.name.number])


def _forward(work: Work, step: int) -> None:
    task, number = work.task, work.name.number
    shard = task.replica(number, work.place)
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


def _backward(work: Work, step: int) -> Told | None:
    task, number = work.task, work.name.number
    shard = task.replica(number, work.place)
    shard.bind_params(work.source("param"))
    shard.bind_grads(work.writes.get("grad", _NOTHING))
    graph, dy = _graph(work, shard, step), None
    if number < len(task.plan.shards) - 1:
        dy = view(work.source("dy"), task.boundaries["dx", number + 1])
    with _no_random(work, step):
        done = shard.backward(graph, dy=dy, dx=work.writes.get("dx"), add="grad" in work.reads)
    if done.dx is not None:
        task.boundary("dx", number, done.dx)
    if done.loss is None:
        return None
    return partial(task.loss, step, work.name.index, work.place.device.later(done.loss))


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
        scale = task.scale.to(work.place.device.where).scale if task.scale and last else None
        return shard.graph(x, dx="dx" in work.writes, targets=targets, scale=scale)


def _update(work: Work, step: int) -> None:
    shard = work.task.host.shards[work.name.number]
    scaling = work.task.scaling(work.reads.get("norm"))
    shard.update(work.source("param"), work.source("grad"), work.reads.get("state"), scaling)


def _norm(work: Work, step: int) -> None:
    """On the device, where the gradients are."""
    shard = work.task.host.shards[work.name.number]
    work.task.note(work.name.number, shard.norms(work.source("grad")), work.writes["norm"])


def _prefetch(work: Work, step: int) -> Told | None:
    (role,) = work.writes
    if role != "batch":
        work.place.device.copy_in(work.writes[role], work.reads[role])
        return None
    batch = work.task.batches.take(step, work.name.index)
    work.place.device.copy_in(work.writes[role], batch)
    return partial(work.task.batches.sent, batch)


def _spill(work: Work, step: int) -> None:
    (role,) = work.writes
    work.place.device.copy_out(work.writes[role], work.reads[role])


def _reduce(work: Work, step: int) -> None:
    if "grad" in work.writes:
        shard = work.task.host.shards[work.name.number]
        shard.add_grads(work.writes["grad"], work.source("other"))


_HANDLERS: dict[str, Callable[[Work, int], Told | None]] = {
    "F": _forward,
    "B": _backward,
    "U": _update,
    "R": _reduce,
    "N": _norm,
    "P": _prefetch,
    "S": _spill,
    "X": _spill,
}
