"""What each kind of op does, once its turn has come: one function per kind, found in a table.

Nothing here waits or decides. An op gets its buffers as uint8 tensors of the value's exact size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from executor.batches import held_batch, inputs_of
from executor.device import Mark
from executor.errors import RunError
from executor.evaluation import LiveEvaluation
from executor.gradients import HooksRefused
from executor.graphs import Graph, Made
from executor.live import LiveTask, Place
from executor.modes import DRAWS
from executor.parameters import NONE
from executor.rng import LentGenerator, RandomMode, no_draws
from executor.shard import Shard
from executor.tied import Tie
from executor.values import Value, read_grads
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
    evaluates: bool = False  # its steps are the numbers of batches of the task's evaluation

    def run(self, round_index: int) -> Told:
        """Launch the op for this round; what to call with the mark behind it."""
        handler = _HANDLERS[self.name.kind]
        if not self.is_metered(round_index):
            return handler(self, self.first_step + round_index) or _untold
        kind, key = self.name.kind, (self.task.plan.name, self.name.number, self.name.index)
        makes = key if kind == "F" and self.activations != "recompute" else None
        makes = None if self.evaluates else makes
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

    @property
    def live(self) -> LiveTask | LiveEvaluation:
        """Whose batches and boundaries the op works with."""
        if not self.evaluates:
            return self.task
        assert self.task.evaluation is not None, "a plan evaluates tasks that say how"
        return self.task.evaluation

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
    *,
    evaluates: bool = False,
) -> Work:
    """The op with its buffers, found by name and cut to the bytes of the value in each role."""
    name = parse_id(op.id)

    def cut(roles: Mapping[Role, str]) -> dict[str, Tensor]:
        return {r: flats[b][: value_bytes(name, r, task.plan)] for r, b in roles.items()}

    if name.kind in "FB":
        task.replica(name.number, place).train(not evaluates)
    place.took(memory.slab_bytes)
    reads, writes = cut(op.reads), cut(op.writes)
    return Work(op, name, task, place, first_step, memory, metered, reads, writes, evaluates)


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


def _turn(work: Work) -> AbstractContextManager[object]:
    """Around a forward that is no recomputation."""
    return work.task.turn(work.name.number, work.name.index, work.place)


def _input(work: Work) -> Value:
    if work.name.number == 0:
        return inputs_of(work.live.batches, work.source("batch"))
    return work.live.boundaries[work.name.number].held(work.source("x"))


def _bound(work: Work) -> Shard:
    """The shard's shell, its parameters those that the op reads."""
    shard = work.task.replica(work.name.number, work.place)
    shard.bind_params(work.source("param"))
    if "tied" in work.reads:
        shard.bind_tied(work.reads["tied"])
    return shard


def _tie(work: Work) -> Tie | None:
    """Of a backward: what tied parameters have of other shards' gradients, and get from it."""
    given, handed = work.reads.get("tie"), work.writes.get("tie")
    if given is None and handed is None:
        return None
    return Tie(given, handed, NONE if given is None else work.task.absent_in(given))


def _forward(work: Work, step: int) -> Told | None:
    if work.evaluates:
        return _evaluate(work, step)
    task, number, microbatch = work.task, work.name.number, work.name.index
    shard = _bound(work)
    x, out = _input(work), work.writes["y"]
    if work.activations == "recompute":
        made = _bare_forward(work, step, shard, x)
        task.before[number, microbatch] = made.before
    else:
        saved = work.writes.get("saved", _NOTHING) if work.activations == "offload" else None
        with _turn(work), _random(work, step):
            made, graph = shard.forward_graph(x, out, saved=saved)
        task.graphs[number, microbatch] = graph
    work.place.guard.check()
    task.boundary(number + 1, made.layout)
    return None


def _evaluate(work: Work, number: int) -> Told | None:
    """A forward for the batch of this number, which draws no random numbers."""
    evaluation, shard, x = work.task.evaluation, _bound(work), _input(work)
    assert evaluation is not None, "a plan evaluates tasks that say how"
    watched = work.place.device.source.shared and work.is_metered(number - work.first_step)
    loss: Tensor | None = None
    with no_draws(DRAWS) if watched else nullcontext():
        if "y" in work.writes:
            evaluation.boundary(work.name.number + 1, shard.evaluate(x, work.writes["y"]))
        else:
            loss = shard.evaluated(x, held_batch(evaluation.batches, work.source("batch")))
    work.place.guard.check()
    if loss is None:
        return None
    return partial(evaluation.loss, number, work.name.index, work.place.device.later(loss))


def _bare_forward(work: Work, step: int, shard: Shard, x: Value) -> Made:
    """A forward that keeps no graph. Layers that need what a graph would keep are run once more
    when it is their first time."""
    out, known = work.writes["y"], work.task.boundaries.get(work.name.number + 1)
    try:
        with _turn(work), _random(work, step):
            return shard.forward(x, out, known)
    except HooksRefused:
        with _turn(work), _random(work, step):
            return shard.forward(x, out, known)


def _backward(work: Work, step: int) -> Told | None:
    task, number, microbatch = work.task, work.name.number, work.name.index
    shard = _bound(work)
    shard.bind_grads(work.writes.get("grad", _NOTHING))
    graph, dy = _graph(work, shard, step), None
    if number < len(task.plan.shards) - 1:
        task.expect(number, graph)
        dy = read_grads(work.source("dy"), task.gradients.pop((number + 1, microbatch)))
    absent = task.absent_in(work.reads["grad"]) if "grad" in work.reads else None
    with _no_random(work, step):
        done = shard.backward(graph, dy=dy, dx=work.writes.get("dx"), absent=absent, tie=_tie(work))
    if number:
        task.gradients[number, microbatch] = done.dx
    for role, missing in (("grad", done.absent), ("tie", done.tie)):
        if role in work.writes:
            task.note_absent(work.writes[role], missing)
    if done.loss is None:
        return None
    return partial(task.loss, step, microbatch, work.place.device.later(done.loss))


def _graph(work: Work, shard: Shard, step: int) -> Graph:
    """The graph that the forward left, or one made by running it again."""
    task, number, microbatch = work.task, work.name.number, work.name.index
    x = _input(work)
    if work.activations != "recompute":
        graph = task.graphs.pop((number, microbatch))
        shard.move(graph, x, work.source("saved"))
        return graph
    if number < len(task.plan.shards) - 1:
        with _random(work, step):
            return shard.graph(x, before=task.before.pop((number, microbatch)))
    batch = held_batch(task.batches, work.source("batch"))
    with _turn(work), _random(work, step):
        scale = task.scale.to(work.place.device.where).scale if task.scale else None
        return shard.graph(x, batch=batch, scale=scale)


def _update(work: Work, step: int) -> None:
    shard, grads = work.task.host.shards[work.name.number], work.source("grad")
    scaling = work.task.scaling(work.reads.get("norm"))
    absent = work.task.absent_in(grads)
    shard.update(work.reads.get("param"), grads, work.reads.get("state"), scaling, absent)


def _norm(work: Work, step: int) -> None:
    """On the device, where the gradients are."""
    shard, grads = work.task.host.shards[work.name.number], work.source("grad")
    absent = work.task.absent_in(grads)
    work.task.note(work.name.number, shard.norms(grads, absent), absent, work.writes["norm"])


def _prefetch(work: Work, step: int) -> Told | None:
    (role,) = work.writes
    if role in work.reads:
        work.place.device.copy_in(work.writes[role], work.reads[role])
        work.task.carry(work.reads[role], work.writes[role])
        return None
    if role == "param":
        shard = work.task.host.shards[work.name.number]
        work.place.device.cast_in(shard.casts(work.writes[role], work.reads["state"]))
        return None
    batches = work.live.batches
    batch = batches.take(step, work.name.index)
    work.place.device.copy_in(work.writes[role], batch)
    return partial(batches.sent, batch)


def _spill(work: Work, step: int) -> None:
    (role,) = work.writes
    work.place.device.copy_out(work.writes[role], work.reads[role])
    work.task.carry(work.reads[role], work.writes[role])


def _reduce(work: Work, step: int) -> None:
    if "grad" in work.writes:
        task, target, other = work.task, work.writes["grad"], work.source("other")
        shard = task.host.shards[work.name.number]
        absent = task.absent_in(target), task.absent_in(other)
        task.note_absent(target, shard.add_grads(target, other, *absent))


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
