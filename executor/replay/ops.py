"""The ops: one function for each kind, found in a table, called when the op's turn has come.

Nothing here waits or decides. An op gets its buffers as uint8 tensors of the value's exact size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from executor.devices import Mark
from executor.numerics import (
    HooksRefused,
    Layout,
    LentGenerator,
    RandomMode,
    Snapshot,
    Value,
    no_draws,
    read_grads,
)
from executor.replay.task_state import TaskState
from executor.shards import (
    DRAWS,
    NONE,
    Absent,
    Graph,
    Place,
    Shard,
    Tie,
    backward_input,
    backward_weights,
)
from executor.workload import Batch, Feed, Share, held_batch
from plans.ops import OpName
from plans.schema import Memory, Op

NOTHING = torch.empty(0, dtype=torch.uint8)

OnDone = Callable[[Mark], None]  # called with the mark behind the op that asked for it
Run = Callable[[int], OnDone | None]  # of a round
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """One op of a segment with everything it touches. `first_step` is its step in round 0; where it
    evaluates, the number of its batch."""

    op: Op
    name: OpName
    task: TaskState
    feed: Feed  # whose batches and boundaries it works with
    place: Place
    first_step: int
    memory: Memory  # of the device, while this program runs there
    metered: bool  # measure transients in round 0
    reads: Mapping[str, Tensor]
    writes: Mapping[str, Tensor]
    evaluates: bool = False
    halves: bool = False  # the backward of its microbatch comes in two parts

    def is_metered(self, round_index: int) -> bool:
        """True if this op's transients are measured in this round."""
        return self.metered and round_index == 0

    def watched(self, step: int) -> bool:
        """True if a random draw that the plan does not know of is found in this very op."""
        return self.place.device.source.shared and self.is_metered(step - self.first_step)

    @property
    def activations(self) -> str:
        """The way in which the op's shard keeps a microbatch's activations for its backward."""
        return self.task.plan.shards[self.name.number].keeps(self.name.index)

    def source(self, role: str) -> Tensor:
        """The bytes that play `role`; none when the value is empty."""
        return self.reads.get(role, NOTHING)


def run_of(work: Work) -> Run:
    """The op's launch for a round, which returns a callback for the mark behind it, if any."""
    handler, first = _HANDLERS[work.name.kind], work.first_step
    return lambda round_index: handler(work, first + round_index)


@contextmanager
def _first(work: Work, step: int) -> Iterator[None]:
    """Around a forward that is no recomputation: it may change module buffers."""
    turn = work.task.replicas.turn(work.name.number, work.name.index, work.place)
    with turn, _random(work, step):
        yield


@contextmanager
def _random(work: Work, step: int) -> Iterator[None]:
    """Draw the plain loop's random numbers in this forward, and prove it afterwards.

    A shard that draws nothing is spared the cost of a mode, and one that is alone with the
    generator as well, except where ops are metered anyway: there an unannounced draw is found in
    the very op that made it.
    """
    task, name, source = work.task, work.name, work.place.device.source
    state = task.rng.state(step, name.index, name.number)
    watched = work.watched(step)
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
    with no_draws() if work.watched(step) else nullcontext():
        yield
    work.place.guard.check()


def _input(work: Work) -> Value:
    flat = work.source("x" if work.name.number else "batch")
    return work.feed.contents.of(flat).layouts[0].held(flat)


def _batch(work: Work) -> Batch:
    flat = work.source("batch")
    inputs, targets = work.feed.contents.of(flat).layouts
    return held_batch((inputs, targets), flat)


def _share(work: Work) -> Share:
    """The share of the microbatch in the op's batch buffer."""
    return work.feed.contents.of(work.source("batch")).share


def _bound(work: Work) -> Shard:
    """The shard's shell, its parameters those that the op reads."""
    shard = work.task.replicas.on(work.name.number, work.place)
    shard.parameters.bind(work.source("param"))
    if "base" in work.reads:
        shard.parameters.bind_base(work.reads["base"])
    if shard.tied and "tied" in work.reads:
        shard.tied.bind(work.reads["tied"])
    return shard


def _tie(work: Work) -> Tie | None:
    """The gradients of tied parameters that a backward gets from other shards, and hands on."""
    given, handed = work.reads.get("tie"), work.writes.get("tie")
    if given is None and handed is None:
        return None
    return Tie(given, handed, NONE if given is None else work.task.absent.of(given))


def _forward(work: Work, step: int) -> OnDone | None:
    if work.evaluates:
        return _evaluate(work, step)
    task, number, microbatch = work.task, work.name.number, work.name.index
    shard = _bound(work)
    x, out = _input(work), work.writes["y"]
    if work.activations == "recompute":
        known = work.feed.boundaries.get(number + 1)
        made: Callable[[], tuple[Layout, Graph | Snapshot]] = partial(shard.forward, x, out, known)
    else:
        saved = work.writes.get("saved", NOTHING) if work.activations == "offload" else None
        made = partial(shard.forward_graph, x, out, saved=saved, halves=work.halves)
    layout, task.left[number, microbatch] = _counted(work, step, made)
    work.place.guard.check()
    work.feed.boundary(number + 1, out, layout)
    return None


def _evaluate(work: Work, number: int) -> OnDone | None:
    """A forward for the batch of this number, which draws no random numbers."""
    feed, shard, x = work.feed, _bound(work), _input(work)
    loss, metrics = None, None
    watched = no_draws(DRAWS) if work.watched(number) else nullcontext()
    with watched, torch.no_grad(), shard.buffers.still():
        if "y" in work.writes:
            out = work.writes["y"]
            feed.boundary(work.name.number + 1, out, shard.evaluate(x, out))
        else:
            loss, metrics = shard.judge(x, _batch(work), _share(work).divisor)
    work.place.guard.check()
    if loss is None:
        return None
    later = work.place.device.later(loss)
    total = _share(work).total
    return partial(feed.loss, number, work.name.index, later, total=total, metrics=metrics)


def _counted(work: Work, step: int, made: Callable[[], T]) -> T:
    """The result of a forward that is no recomputation. Layers that do not let others see what a
    graph keeps are run once more when it is their first time."""
    try:
        with _first(work, step):
            return made()
    except HooksRefused:
        with _first(work, step):
            return made()


def _backward(work: Work, step: int) -> OnDone | None:
    """B, all of a backward at once, or I, its first part."""
    task, number, microbatch = work.task, work.name.number, work.name.index
    shard, grads = _bound(work), work.writes.get("grad", NOTHING)
    graph, dy = _graph(work, shard, step), None
    if number < len(task.plan.shards) - 1:
        task.expect(number, graph)
        dy = read_grads(work.source("dy"), task.gradients.pop((number + 1, microbatch)))
    with _no_random(work, step):
        dx, tie = work.writes.get("dx"), _tie(work)
        if work.name.kind == "I":
            done, left = backward_input(shard, graph, dy=dy, dx=dx, tie=tie)
            task.left[number, microbatch] = left
        else:
            absent = _absent(work)
            done = shard.backward(graph, grads, dy=dy, dx=dx, absent=absent, tie=tie)
    if number:
        task.gradients[number, microbatch] = done.dx
    for role, missing in (("grad", done.absent), ("tie", done.tie)):
        if role in work.writes:
            task.absent.note(work.writes[role], missing)
    if done.loss is None:
        return None
    return partial(work.feed.loss, step, microbatch, work.place.device.later(done.loss))


def _weights(work: Work, step: int) -> None:
    """The second part of a backward."""
    task, grads = work.task, work.writes["grad"]
    shard, graph = _bound(work), task.left.pop((work.name.number, work.name.index))
    assert isinstance(graph, Graph), "the first part leaves it"
    shard.move(graph, _input(work), work.source("saved"))
    with _no_random(work, step):
        task.absent.note(grads, backward_weights(shard, graph, grads, absent=_absent(work)))


def _absent(work: Work) -> Absent | None:
    """The parameters without a gradient in what this op adds to; None: it adds to nothing."""
    return work.task.absent.of(work.reads["grad"]) if "grad" in work.reads else None


def _graph(work: Work, shard: Shard, step: int) -> Graph:
    """The graph that the forward left, or one made by running it again."""
    task, number, microbatch = work.task, work.name.number, work.name.index
    x, left = _input(work), task.left.pop((number, microbatch), None)
    if isinstance(left, Graph):
        shard.move(left, x, work.source("saved"))
        return left
    if left is not None:
        with _random(work, step):
            return shard.graph(x, before=left, halves=work.halves)
    scale = task.scale.at(work.place.device.where) if task.scale else None
    divisor = _share(work).divisor
    made = partial(
        shard.graph, x, batch=_batch(work), divisor=divisor, scale=scale, halves=work.halves
    )
    return _counted(work, step, made)


def _update(work: Work, step: int) -> None:
    shard, grads = work.task.host.shards[work.name.number], work.source("grad")
    scaling = work.task.scaling(work.reads.get("norm"))
    absent = work.task.absent.of(grads)
    shard.update(work.reads.get("param"), grads, work.reads.get("state"), scaling, absent)


def _norm(work: Work, step: int) -> None:
    """On the device, where the gradients are."""
    shard, grads = work.task.host.shards[work.name.number], work.source("grad")
    absent = work.task.absent.of(grads)
    norms = shard.parameters.norms(grads, absent)
    work.task.note_norms(step, work.name.number, norms, absent, work.writes["norm"])


def _prefetch(work: Work, step: int) -> OnDone | None:
    (role,) = work.writes
    if role in work.reads:
        work.place.device.copy_in(*_ends(work))
        return None
    if role == "param":
        parameters = work.task.host.shards[work.name.number].parameters
        work.place.device.cast_in(parameters.casts(work.writes[role], work.reads["state"]))
        return None
    batches, target = work.feed.batches, work.writes[role]
    flat, content = batches.take(step, work.name.index)
    work.place.device.copy_in(target[: len(flat)], flat)
    work.feed.contents.note(target, content)
    return partial(batches.sent, step)


def _spill(work: Work, step: int) -> None:
    work.place.device.copy_out(*_ends(work))


def _send(work: Work, step: int) -> None:
    work.place.device.send(*_ends(work))


def _ends(work: Work) -> tuple[Tensor, Tensor]:
    """Target and source of a copy, as far as there is something; what is known of the one is known
    of the other."""
    ((role, target),) = work.writes.items()
    source = work.reads[role]
    if work.name.item in ("x", "batch"):
        size = work.feed.contents.carry(source, target)
        return target[:size], source[:size]
    work.task.absent.carry(source, target)
    return target, source


def _reduce(work: Work, step: int) -> None:
    if "grad" in work.writes:
        task, target, other = work.task, work.writes["grad"], work.source("other")
        parameters = task.host.shards[work.name.number].parameters
        absent = task.absent.of(target), task.absent.of(other)
        task.absent.note(target, parameters.add_grads(target, other, *absent))


_HANDLERS: dict[str, Callable[[Work, int], OnDone | None]] = {
    "F": _forward,
    "B": _backward,
    "I": _backward,
    "W": _weights,
    "U": _update,
    "R": _reduce,
    "N": _norm,
    "P": _prefetch,
    "S": _spill,
    "X": _send,
}
