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
from functools import cached_property

from planner.shards.modes import backward_us, forward_us
from planner.shards.strategy import Strategy
from planner.shards.values import Into, Out, Value
from profiles.codec import align


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

    def values(self) -> Iterator[Value]:
        """Everything in the slab, with the least life."""
        s, count = self.strategy, self.strategy.costs.microbatches
        yield self._always("batch", count * s.costs.batch_bytes, s.parts)
        yield self._always("norm", align(s.costs.task.norm_bytes))
        if s.owner is not None:
            first, last = self._gathers(s.top), self.backward(s.owner)
            yield Value("tie", count * s.tie_bytes, first, last, s.parts)
        for k, mode in enumerate(s.modes):
            yield from self._held(k)
            yield from self._gradient(k)
            if k:
                yield from self._boundary(k)
            if mode.activations == "offload":
                yield from self._packed(k)

    def _packed(self, k: int) -> Iterator[Value]:
        """Activations of shard k on their way out and in, through a few buffers."""
        s, each = self.strategy, self.strategy.shards[k].offload_bytes or 0
        size, out = s.ring * s.each * each, s.costs.microbatches * each
        up, back = self.forward(k), self.backward(k)
        yield Value(f"a{k}", size, up, up, s.ring, out=Out(up, back, out, steady=True))
        yield _load(f"a{k}b", size, back, Into(back, out, up + 1, f"a{k}", True), s.ring)

    def _held(self, k: int) -> Iterator[Value]:
        """Parameters and optimizer state of shard k."""
        s, back, update = self.strategy, self.backward(k), self.update(k)
        shard, mode = s.shards[k], s.modes[k]
        spills = mode.update == "device-streamed" and shard.grad_bytes
        param, state = shard.param_bytes, shard.state_bytes
        out = Out(update, self.first(k) + self.count, param) if spills and not shard.cast else None
        last = update if spills else back
        free = update + 1 - self.count  # the slot after it went away in the round before
        if s.costs.noted and mode.update == "host" and shard.grad_bytes:
            free = self.sweeps - self.count  # or after all norms, before which none is updated
        again = mode.params == "streamed" and k != s.last
        after = f"s{k}.{'again' if again else 'param'}" if out else f"s{k}.grad"
        if spills and not out:
            after = f"s{k}.state"
        if mode.params == "resident":
            yield self._always(f"s{k}.param", param)
        elif not again:
            into = Into(self.first(k), param, free, after, cast=shard.cast)
            yield _load(f"s{k}.param", param, last, into, out=out)
        else:
            up = self.forward(k)
            into = Into(up, param, free, after, cast=shard.cast)
            yield _load(f"s{k}.param", param, up, into)
            into = Into(back, param, up + 1, cast=shard.cast)
            yield _load(f"s{k}.again", param, last, into, out=out)
        if mode.update == "device":
            yield self._always(f"s{k}.state", state)
        elif mode.update == "device-streamed":
            out = Out(update, update + self.count, state) if spills else None
            into = Into(update, state, free, f"s{k}.state")
            yield _load(f"s{k}.state", state, update, into, out=out)

    def _gradient(self, k: int) -> Iterator[Value]:
        shard, out = self.strategy.shards[k], None
        if self.strategy.modes[k].update == "host":
            again = self.first(k) + self.count
            out = Out(self.backward(k), again, shard.grad_bytes, shard.update_host_us)
        first, last = self._gathers(k), self.update(k)
        yield Value(f"s{k}.grad", shard.grad_bytes, first, last, out=out)

    def _gathers(self, k: int) -> int:
        """The slot of shard k's first backward."""
        return self.first(k) if self.strategy.in_block(k) else self.backward(k)

    def _boundary(self, k: int) -> Iterator[Value]:
        """x of shard k, and later its gradient in the same bytes."""
        s, size, back = self.strategy, self.strategy.shards[k].in_bytes, self.backward(k)
        if s.turn and k > s.block:
            yield Value(f"x{k}", size, s.block, back + 1)
            return
        size *= s.costs.microbatches
        made = self.forward(k - 1)
        if s.modes[k].spilled:
            out = Out(made, back, size, steady=True)
            yield Value(f"x{k}", size, made, made + 1, s.parts, out=out)
            into = Into(back, size, made + 2, f"x{k}", True)
            yield _load(f"x{k}b", size, back + 1, into, s.parts)
        else:
            yield Value(f"x{k}", size, made, back + 1, parts=s.parts)

    def _always(self, name: str, size: int, parts: int = 1) -> Value:
        return Value(name, size, 0, self.count - 1, parts)


def _load(
    name: str, size: int, last: int, into: Into, parts: int = 1, out: Out | None = None
) -> Value:
    """A value that comes for slot `into.need` and is used up to slot `last`."""
    return Value(name, size, into.need, last, parts, into, out)
