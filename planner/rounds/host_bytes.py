"""The bytes of a task in the host store: parameters and state, and scratch of its rounds.

Scratch is what waits on the host for a while: boundaries and packed activations from forward to
backward, gradients from backward to their update, norms. While there is room everything has bytes
of its own. Where there is not, bytes change hands as they do in the slab, in cyclic lifetimes
counted in `slots`: a gradient lives until its shard computes again, or only until so many
later ones have come, which wait for its update then.

    bytes ^  | a0 a0 a0 a0 | grad 2   grad 0 ..
          |  |    a1 a1 |  grad 1  ..
          +--------------------------> steps
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from msgspec import structs

from planner.rounds.hydra import HydraStrategy
from planner.rounds.slab import Life, Slab, buffers_of
from planner.shards import Slots, Strategy, Value, extent, pack
from plans.schema import Buffer
from profiles.codec import align

PLENTY = 1 << 62
"""Bytes that no host has: where its memory does not matter."""


@dataclass(frozen=True)
class Store:
    """A task's bytes on the host, from 0 on: what is kept between segments, then scratch.

    before: of scratch, for a buffer those whose bytes it takes over.
    """

    kept: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    before: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def kept_bytes(self) -> int:
        return extent(self.kept)

    @property
    def scratch_bytes(self) -> int:
        return self.bytes - self.kept_bytes

    @cached_property
    def bytes(self) -> int:
        return extent(self.buffers)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.kept + self.scratch


def kept_bytes(strategy: Strategy | HydraStrategy) -> int:
    """Bytes of all that the host keeps of the strategy's task between segments."""
    return sum(shard.kept_bytes for shard in strategy.shards)


def store(strategy: Strategy | HydraStrategy) -> Store:
    """The task's part of the host store, as the strategy has it."""
    name = strategy.costs.task.name
    held = pack(
        (
            (f"{name}.s{k}.{role}", size)
            for k, shard in enumerate(strategy.shards)
            for role, size in shard.kept.items()
        ),
        "host",
    )
    if isinstance(strategy, HydraStrategy):
        scratch, before = pack(strategy.waiting(), "host"), {}
    else:
        layout = Scratch.of(strategy)
        scratch, before = layout.buffers, layout.before
    base = extent(held)
    behind = (structs.replace(buffer, offset=base + buffer.offset) for buffer in scratch)
    return Store(held, tuple(behind), before)


def fitted(strategy: Strategy, room: int) -> Strategy | None:
    """The strategy with what waits on the host in what `room` bytes leave for it beside what is
    kept there; None when it does not fit."""
    left = room - kept_bytes(strategy)
    if sum(value.bytes for value in _values(strategy)) <= left:
        return replace(strategy, host_bytes=None) if strategy.host_bytes is not None else strategy
    return replace(strategy, host_bytes=left) if _least(strategy).bytes <= left else None


def least_bytes(strategy: Strategy | HydraStrategy) -> int:
    """Bytes of the host without which the strategy does not fit."""
    if isinstance(strategy, HydraStrategy):
        return store(strategy).bytes
    return kept_bytes(strategy) + _least(strategy).bytes


@dataclass(frozen=True)
class Scratch:
    """The layout of what waits on the host for a while. before: for a buffer, those whose bytes it
    takes over. order: the shards updated there, those first whose gradients have to go first."""

    buffers: tuple[Buffer, ...]
    before: dict[str, list[str]]
    order: tuple[int, ...]

    @classmethod
    def of(cls, strategy: Strategy) -> "Scratch":
        updated = _updated(strategy)
        if strategy.host_bytes is None:
            values = _values(strategy)
            ends = [0, *accumulate(value.bytes for value in values)]
            buffers = [
                buffer
                for value, at in zip(values, ends, strict=False)
                for buffer in buffers_of(value, at)
            ]
            return cls(tuple(buffers), {}, tuple(sorted(updated)))
        layout = _stretched(strategy, strategy.host_bytes)
        name = strategy.costs.task.name
        last = {k: layout.lives[f"{name}.s{k}.grad"].last for k in updated}
        order = tuple(sorted(updated, key=lambda k: (last[k], k)))
        return cls(layout.buffers, layout.before, order)


def _least(strategy: Strategy) -> Slab:
    """In as few bytes as are found."""
    return _laid(strategy, _fewest(strategy), 0)


def _fewest(strategy: Strategy) -> int:
    """Gradients that must have bytes of their own: where updates wait for norms, all."""
    return max(1, len(_updated(strategy))) if strategy.costs.noted else 1


def _stretched(strategy: Strategy, room: int) -> Slab:
    """With as many gradients at a time as there is always room for, each of which then stays as
    long as there is room."""
    few, most = _fewest(strategy), max(1, len(_updated(strategy)))
    while few < most:
        middle = (few + most + 1) // 2
        if _laid(strategy, middle, room).bytes <= room:
            few = middle
        else:
            most = middle - 1
    layout, longer = _laid(strategy, few, room), 1
    stay = {value.name: value.last for value in _values(strategy)}
    grads = [layout.lives[f"{strategy.costs.task.name}.s{k}.grad"] for k in _updated(strategy)]
    while longer < layout.steps and any(life.last < stay[life.value.name] for life in grads):
        for life in grads:
            layout.live(life, life.first, min(stay[life.value.name], life.last + longer))
        longer *= 2
    return layout


def _laid(strategy: Strategy, grads: int, room: int) -> Slab:
    """The waiting values, with so many gradients at a time, placed to stretch into `room` bytes."""
    return Slab([Life.of(value) for value in _values(strategy, grads)], Slots(strategy).count, room)


def _updated(strategy: Strategy) -> list[int]:
    """The shards updated on the host, in the order in which their gradients come."""
    pairs = enumerate(zip(strategy.shards, strategy.modes, strict=True))
    mine = [k for k, (shard, mode) in pairs if mode.update == "host" and shard.grad_bytes]
    return mine[::-1]


def _values(strategy: Strategy, grads: int = 0) -> list[Value]:
    """All that waits, for as long as costs nobody anything; or so many gradients at a time."""
    every = [*_gradients(strategy, grads), *_aside(strategy)]
    if _updated(strategy):
        norms, name = align(strategy.costs.task.norm_bytes), f"{strategy.costs.task.name}.norm"
        every.append(Value(name, norms, 0, Slots(strategy).count - 1, space="host"))
    return [value for value in every if value.bytes]


def _gradients(strategy: Strategy, grads: int) -> Iterator[Value]:
    """Gradients, until their shard computes again, when the update is long over."""
    shards, slots = _updated(strategy), Slots(strategy)
    for place, k in enumerate(shards):
        first, last = slots.backward(k), slots.first(k) + slots.count - 1
        if 0 < grads < len(shards):
            laps, at = divmod(place + grads, len(shards))
            last = min(last, slots.backward(shards[at]) + laps * slots.count - 1)
        name, size = f"{strategy.costs.task.name}.s{k}.grad", align(strategy.shards[k].grad_bytes)
        yield Value(name, size, first, last, space="host")


def _aside(strategy: Strategy) -> Iterator[Value]:
    """Boundaries and packed activations, from forward to backward."""
    slots = Slots(strategy)
    for k, (shard, mode) in enumerate(zip(strategy.shards, strategy.modes, strict=True)):
        sizes = {f"x{k}": (slots.forward(k - 1), shard.in_bytes)} if mode.spilled else {}
        if mode.activations == "offload":
            sizes[f"a{k}"] = slots.forward(k), shard.offload_bytes or 0
        for item, (made, each) in sizes.items():
            name, size = (
                f"{strategy.costs.task.name}.{item}",
                strategy.costs.microbatches * align(each),
            )
            yield Value(name, size, made, slots.backward(k), strategy.parts, space="host")
