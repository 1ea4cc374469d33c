"""The bytes of a task in the host store: parameters and state, and scratch of its rounds.

Scratch is what waits on the host for a while: boundaries and packed activations from forward to
backward, gradients from backward to their update, norms. While there is room everything has bytes
of its own. Where there is not, bytes change hands as they do in the slab, in cyclic lifetimes
counted in steps: a gradient lives until its shard computes again, or only until so many
later ones have come, which wait for its update then.

    bytes ^  | a0 a0 a0 a0 | grad 2   grad 0 ..
          |  |    a1 a1 |  grad 1  ..
          +--------------------------> steps
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import itemgetter

from msgspec import structs

from planner.lowering.walk import Walk, walked
from planner.rounds import Lifetimes, Longer, Slab, buffers_of, stretched
from planner.shards import Out, Planned, Strategy, Value, extent, pack
from plans.schema import Buffer, Role
from profiles.codec import align


@dataclass(frozen=True)
class Store:
    """A task's bytes on the host, from 0 on: what is kept between segments, then scratch."""

    kept: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]

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


def kept_bytes(strategy: Planned) -> int:
    """Bytes of all that the host keeps of the strategy's task between segments."""
    return sum(shard.kept_bytes for shard in strategy.shards)


def store(strategy: Planned) -> Store:
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
    base, scratch = extent(held), Scratch(strategy).buffers
    behind = (structs.replace(buffer, offset=base + buffer.offset) for buffer in scratch)
    return Store(held, tuple(behind))


def fitted(strategy: Strategy, room: int) -> Strategy | None:
    """The strategy with what waits on the host in what `room` bytes leave for it beside what is
    kept there; None when it does not fit."""
    left, waiting = room - kept_bytes(strategy), _Waiting(strategy)
    if sum(value.bytes for value in waiting.values()) <= left:
        return replace(strategy, host_bytes=None) if strategy.host_bytes is not None else strategy
    return replace(strategy, host_bytes=left) if waiting.least().bytes <= left else None


def least_bytes(strategy: Planned) -> int:
    """Bytes of the host without which the strategy does not fit."""
    if isinstance(strategy, Strategy):
        return kept_bytes(strategy) + _Waiting(strategy).least().bytes
    return store(strategy).bytes


@dataclass(frozen=True, eq=False)
class Scratch:
    """The layout of what waits on the host for a while, made as far as it is asked for. walk: of
    the strategy, where that is at hand."""

    strategy: Planned
    walk: Walk | None = None

    @cached_property
    def _waiting(self) -> "_Waiting | None":
        """The values that wait, which may change hands; None on several devices, where none do."""
        return _Waiting(self.strategy, self.walk) if isinstance(self.strategy, Strategy) else None

    @cached_property
    def _changing(self) -> Slab | None:
        """The layout in which bytes change hands; None where everything has bytes of its own."""
        own = self.strategy
        room = own.host_bytes if isinstance(own, Strategy) else None
        return self._waiting.stretched(room) if self._waiting and room is not None else None

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """From 0 on."""
        if self._changing:
            return self._changing.buffers
        if not self._waiting:
            return pack(self.strategy.waiting(), "host")
        values = self._waiting.values()
        ends = accumulate((value.bytes for value in values), initial=0)
        placed = zip(values, ends, strict=False)
        return tuple(buffer for value, at in placed for buffer in buffers_of(value, at))

    @cached_property
    def before(self) -> dict[str, list[str]]:
        """For a buffer, those whose bytes it takes over."""
        return self._changing.before if self._changing else {}

    @cached_property
    def order(self) -> list[int]:
        """The shards updated there, those first whose gradients have to go first."""
        if self._changing:
            grads = (life for life in self._changing.placed if life.value.role == "grad")
            return [k for _, k in sorted((life.last, life.value.number) for life in grads)]
        return sorted(k for k, _ in self._waiting.grads) if self._waiting else []


class _Waiting:
    """Values that wait on the host for a while.

    grads: the copies of shards updated there, in the order in which they come.
    """

    def __init__(self, strategy: Strategy, walk: Walk | None = None) -> None:
        walk = walk or walked(strategy)
        self.strategy = strategy
        self.costs, self.parts, self.count = strategy.costs, strategy.parts, walk.lives.count[0]
        out = {(v.number, v.role): v.out for v in walk.values[0] if v.out}
        waits = [(role, k, out[k, role]) for k, role in sorted(out, key=itemgetter(0))]
        self.grads = [(k, out) for role, k, out in waits[::-1] if role == "grad"]
        self.aside = [one for one in waits if one[0] in ("x", "saved")]

    def values(self, grads: int = 0) -> list[Value]:
        """All that waits, for as long as costs nobody anything; or so many gradients at a time."""
        every = [self._gradient(place, grads) for place in range(len(self.grads))]
        for role, k, out in self.aside:
            every += self._aside(role, k, out)
        norms = align(self.costs.task.norm_bytes)
        if self.grads and norms:
            name = f"{self.costs.task.name}.norm"
            every.append(Value(name, norms, 0, self.count - 1, space="host"))
        return every

    def _aside(self, role: Role, k: int, out: Out) -> Iterator[Value]:
        """Microbatches' boundaries, or what they packed; all of them, or those that do."""
        count, name = self.costs.microbatches, f"{'x' if role == 'x' else 'a'}{k}"
        if role == "x" or not self.strategy.modes[k].recomputed:
            size = count * align(out.bytes // count)
            value = self._hosted(
                name + ".0" * (self.parts == 1), role, k, size, out.made, out.again
            )
            yield value._replace(parts=self.parts)
            return
        packed = [m for m in range(count) if self.strategy.mode(k, m).activations == "offload"]
        for m in packed:
            size = align(out.bytes // len(packed))
            yield self._hosted(f"{name}.{m}", role, k, size, out.made, out.again)

    def _gradient(self, place: int, grads: int) -> Value:
        """A gradient, until its shard computes again, when the update is long over."""
        (k, out), count = self.grads[place], len(self.grads)
        last = out.again - 1
        if 0 < grads < count:
            laps, at = divmod(place + grads, count)
            last = min(last, self.grads[at][1].made + laps * self.count - 1)
        return self._hosted(f"s{k}.grad", "grad", k, align(out.bytes), out.made, last)

    def _hosted(self, name: str, role: Role, k: int, size: int, first: int, last: int) -> Value:
        """A value on the host."""
        own = f"{self.costs.task.name}.{name}"
        return Value(own, size, first, last, space="host", role=role, number=k)

    def least(self) -> Slab:
        """In as few bytes as are found."""
        return self._laid(self._fewest)

    @property
    def _fewest(self) -> int:
        """Gradients that must have bytes of their own: where updates wait for norms, all."""
        return max(1, len(self.grads)) if self.costs.noted else 1

    def stretched(self, room: int) -> Slab:
        """With as many gradients at a time as there is always room for, each of which then stays as
        long as there is room."""
        counts = range(self._fewest, max(1, len(self.grads)) + 1)
        few = bisect_right(counts, room, lo=1, key=lambda n: self._laid(n).bytes)
        stay = {value.name: value.last for value in self.values()}

        def wishes() -> Iterator[Longer]:
            grads, longer = [f"{self.costs.task.name}.s{k}.grad" for k, _ in self.grads], 1
            while longer < self.count:
                yield from (Longer(name, later=longer, until=stay[name]) for name in grads)
                longer *= 2

        return stretched(self.values(counts[few - 1]), self.count, room, wishes)

    def _laid(self, grads: int) -> Slab:
        """The waiting values, with so many gradients at a time."""
        return Slab(Lifetimes.of(self.values(grads), self.count))
