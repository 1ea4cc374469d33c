"""Slots: positions on the compute stream of a strategy's round, and what lives when.

All microbatches of a shard are one slot; a round has

    slot   0   1  ...  K-2 | K-1   K  ...  2K-2        F: slot k          (the last shard has none)
           F0  F1 ...  F   | B    B   ...  B0          B: slot 2(K-1) - k  (and its update)

and slots wrap around: what is loaded ahead for slot 0 lives at the end of the round before.

Shards of a block take microbatch after microbatch up and down, so that every shard's update follows
its own last backward. One more slot, the turn, stands for all but the last microbatch:

           F0 F1 | turn: (F2 F3 B4 B3 B2) x (M-1) | F2 F3 B4 B3 B2 | B1 B0

Where updates wait for the norms of all gradients, those on the device make up further slots after
B0: one for all whose state stays, and one for each whose state streams.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from planner.shards.modes import backward_us, forward_us
from planner.shards.strategy import Strategy
from planner.shards.values import Into, Out, Value
from plans.schema import Role
from profiles.codec import align


@lru_cache(maxsize=64)
def slots_of(strategy: Strategy) -> "Slots":
    """The slots of a strategy, which several look at one after the other."""
    return Slots(strategy)


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a strategy."""

    strategy: Strategy

    @property
    def sweeps(self) -> int:
        """Slots from the first forward to the last backward."""
        return 2 * self.strategy.last + 1 + self.strategy.turn

    @cached_property
    def count(self) -> int:
        """Slots of a round."""
        return max([self.sweeps, *(slot + 1 for slot in self._late.values())])

    @cached_property
    def _late(self) -> dict[int, int]:
        """The slots of updates on the device that wait for norms, by shard."""
        if not self.strategy.costs.noted:
            return {}
        pairs = zip(self.strategy.shards, self.strategy.modes, strict=True)
        updates = {k: mode.update for k, (shard, mode) in enumerate(pairs) if shard.grad_bytes}
        stay = [k for k, update in updates.items() if update == "device"]
        stream = [k for k, update in updates.items() if update == "device-streamed"]
        first = self.sweeps + bool(stay)
        return dict.fromkeys(stay, self.sweeps) | {k: first + i for i, k in enumerate(stream)}

    def forward(self, k: int) -> int:
        """The slot of shard k's forward."""
        return k + self.strategy.in_block(k)

    def backward(self, k: int) -> int:
        """The slot of shard k's backward, of a block's shard the last."""
        return 2 * self.strategy.last - k + self.strategy.turn

    def update(self, k: int) -> int:
        """When shard k is updated, if that is on the device; else the slot of its backward."""
        return self._late.get(k, self.backward(k))

    def first(self, k: int) -> int:
        """When shard k computes for the first time."""
        if self.strategy.in_block(k):
            return self.strategy.block
        return min(self.forward(k), self.backward(k))

    @cached_property
    def us(self) -> tuple[int, ...]:
        """µs that every slot computes."""
        s, slots, turn = self.strategy, [0] * self.count, 0
        for k, (shard, mode) in enumerate(zip(s.shards, s.modes, strict=True)):
            forward = forward_us(shard, mode) if k < s.last else 0
            backward, inside = backward_us(shard, mode), s.in_block(k)
            count = 1 if inside else s.costs.microbatches
            slots[self.forward(k)] += forward * count
            slots[self.backward(k)] += backward * count + shard.norm_us
            if mode.update != "host":
                slots[self.update(k)] += shard.update_device_us
            turn += inside * (forward + backward)
        slots[s.block] += (s.costs.microbatches - 1) * turn
        return tuple(slots)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Everything in the slab, with the least life."""
        return tuple(self._values())

    def _values(self) -> Iterator[Value]:
        s, count = self.strategy, self.strategy.costs.microbatches
        yield self._always("batch", count * s.costs.batch_bytes, "batch", parts=s.parts)
        yield self._always("norm", align(s.costs.task.norm_bytes), "norm")
        if s.owner is not None:
            first, last = self._gathers(s.top), self.backward(s.owner)
            yield Value("tie", count * s.tie_bytes, first, last, s.parts, role="tie")
        for k, mode in enumerate(s.modes):
            yield from self._parameters(k)
            yield from self._state(k)
            yield self._gradient(k)
            if k:
                yield from self._boundary(k)
            if mode.activations == "offload":
                yield from self._packed(k)

    def _packed(self, k: int) -> Iterator[Value]:
        """Activations of shard k on their way out and in, through a few buffers."""
        s, each = self.strategy, self.strategy.shards[k].offload_bytes or 0
        size, out = s.ring * s.each * each, s.costs.microbatches * each
        up, back = self.forward(k), self.backward(k)
        away, into = Out(up, back, out, steady=True), Into(back, out, up + 1, f"a{k}", steady=True)
        yield Value(f"a{k}", size, up, up, s.ring, out=away, role="saved", number=k)
        yield Value(f"a{k}b", size, back, back, s.ring, into, role="saved", number=k)

    def _free(self, k: int) -> int:
        """The slot after shard k's update in the round before, when its values may come again."""
        s = self.strategy
        if s.costs.noted and s.modes[k].update == "host" and s.shards[k].grad_bytes:
            return self.sweeps - self.count  # behind all norms, before which none is updated
        return self.update(k) + 1 - self.count

    def _streams(self, k: int) -> bool:
        """True if shard k's state, and parameters that do not stay, go after its update."""
        mode, shard = self.strategy.modes[k], self.strategy.shards[k]
        return mode.update == "device-streamed" and shard.grad_bytes > 0

    def _parameters(self, k: int) -> Iterator[Value]:
        shard, mode, name = self.strategy.shards[k], self.strategy.modes[k], f"s{k}.param"
        if mode.params == "resident":
            yield self._always(name, shard.param_bytes, "param", k)
            return
        first, last, after = self.first(k), self.backward(k), f"s{k}.grad"
        again = mode.params == "streamed" and k != self.strategy.last
        out = None
        if self._streams(k):
            last, after = self.update(k), f"s{k}.state"
            if not shard.cast:
                after = f"s{k}.{'again' if again else 'param'}"
                out = Out(last, first + self.count, shard.param_bytes)
        into = Into(first, shard.param_bytes, self._free(k), after, cast=shard.cast)
        if again:
            yield _shards(name, k, "param", first, into)
            name, back = f"s{k}.again", self.backward(k)
            into = Into(back, shard.param_bytes, first + 1, cast=shard.cast)
        yield _shards(name, k, "param", last, into, out)

    def _state(self, k: int) -> Iterator[Value]:
        update, size = self.update(k), self.strategy.shards[k].state_bytes
        match self.strategy.modes[k].update:
            case "device":
                yield self._always(f"s{k}.state", size, "state", k)
            case "device-streamed":
                out = Out(update, update + self.count, size) if self._streams(k) else None
                into = Into(update, size, self._free(k), f"s{k}.state")
                yield _shards(f"s{k}.state", k, "state", update, into, out)

    def _gradient(self, k: int) -> Value:
        shard, out = self.strategy.shards[k], None
        if self.strategy.modes[k].update == "host":
            again = self.first(k) + self.count
            out = Out(self.backward(k), again, shard.grad_bytes, shard.update_host_us)
        first, last = self._gathers(k), self.update(k)
        return Value(f"s{k}.grad", shard.grad_bytes, first, last, out=out, role="grad", number=k)

    def _gathers(self, k: int) -> int:
        """The slot of shard k's first backward."""
        return self.first(k) if self.strategy.in_block(k) else self.backward(k)

    def _boundary(self, k: int) -> Iterator[Value]:
        """x of shard k, and later its gradient in the same bytes."""
        s, size, back = self.strategy, self.strategy.shards[k].in_bytes, self.backward(k)
        if s.turn and k > s.block:
            yield Value(f"x{k}", size, s.block, back + 1, role="x", number=k)
            return
        size *= s.costs.microbatches
        made, last, out = self.forward(k - 1), back + 1, None
        if s.modes[k].spilled:
            last, out = made + 1, Out(made, back, size, steady=True)
        yield Value(f"x{k}", size, made, last, s.parts, out=out, role="x", number=k)
        if out:
            into = Into(back, size, made + 2, f"x{k}", steady=True)
            yield Value(f"x{k}b", size, back, back + 1, s.parts, into, role="x", number=k)

    def _always(self, name: str, size: int, role: Role, number: int = 0, parts: int = 1) -> Value:
        return Value(name, size, 0, self.count - 1, parts, role=role, number=number)


def _shards(
    name: str, number: int, role: Role, last: int, into: Into, out: Out | None = None
) -> Value:
    """A shard's value that comes for slot `into.need` and is used up to slot `last`."""
    return Value(name, into.bytes, into.need, last, 1, into, out, role=role, number=number)
