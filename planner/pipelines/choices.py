"""The modes that a shard of a pipeline may have, and the memory and the time that each takes."""

from dataclasses import dataclass

from planner.lowering import PipelineStrategy
from planner.pipelines.windows import Held, Window
from planner.shards import Links, Mode, Place, backward_us, forward_us, modes_of, transient_bytes
from profiles.codec import align

_SLOTS = 3  # through which boundaries come and go


@dataclass(frozen=True, eq=False)
class Choices:
    """The modes that each shard may have in a pipeline."""

    strategy: PipelineStrategy
    links: Links

    def modes(self, k: int) -> list[Mode]:
        """The modes of a shard: graph saved or not, held in any way that does it."""
        shard, place = self.strategy.shards[k], Place(not k, k == self.strategy.last, False)
        # Its home writes what others load, and their nodes would have what it was before.
        users = (self.strategy.homes[k], *self.strategy.users[k])
        sent = shard.grad_bytes > 0 and self.links.across(users)
        goes_on = k in self.strategy.halved  # its graph, from I to W
        return [
            mode
            for mode in modes_of(shard, place)
            if not (sent and (mode.params != "resident" or mode.update == "host"))
            and not (goes_on and mode.params == "streamed")
            and not (mode.spilled and mode.activations == "offload")  # one of both, to have fewer
        ]

    def held_bytes(self, window: Window, held: Held, mode: Mode) -> tuple[int, int]:
        """The bytes that a shard has on a device in a window: in its slab, and beside that in
        graphs and what the pass takes."""
        k = held.shard
        shard = self.strategy.on[window.device][k]
        home = self.strategy.homes[k] == window.device
        few = min(held.flying, _SLOTS) if held.near else 0
        slab = (few if mode.spilled else held.flying) * align(shard.in_bytes)
        if mode.activations == "offload":
            slab += few * align(shard.offload_bytes or 0)
        if mode.params != "streamed" or held.near:
            slab += align(shard.param_bytes)
        if home and mode.update == "device":
            slab += align(shard.state_bytes)
        if held.learns:
            slab += align(shard.grad_bytes)
            slab += align(shard.state_bytes) if home and mode.update == "device-streamed" else 0
        whole = held.flying - held.half_done if mode.activations == "saved" else 0
        beside = whole * shard.saved_bytes + held.half_done * (shard.left_bytes or 0)
        if window.now.shard == k:
            beside += transient_bytes(shard, mode, window.now.kind)
            if window.now.kind == "F" and mode.activations == "saved":
                beside -= shard.saved_bytes  # the graph that it makes is among those in flight
        return slab, beside

    def compute_us(self, k: int, device: int, mode: Mode, count: int) -> int:
        """A shard's time on a device in a round. Packed activations are waited for where they take
        longer to go or come than a pass: there are few buffers for them."""
        shard = self.strategy.on[device][k]
        forward = forward_us(shard, mode) if k < self.strategy.last else 0
        backward = backward_us(shard, mode)
        own = shard.update_device_us if mode.update != "host" else 0
        if mode.activations == "offload":
            forward = max(forward + self.links.pack_us(shard), self._out(shard.offload_bytes or 0))
            backward = max(backward, self._in(shard.offload_bytes or 0))
        each = forward + backward
        return count * each + (own + shard.norm_us) * (self.strategy.homes[k] == device)

    def copies_us(self, k: int, device: int, mode: Mode, times: int, count: int) -> tuple[int, int]:
        """The time of a shard's copies from the host in a round, and of those to it."""
        shard, home = self.strategy.on[device][k], self.strategy.homes[k] == device
        aside = shard.in_bytes if mode.spilled else 0
        aside += (shard.offload_bytes or 0) if mode.activations == "offload" else 0
        come, go = count * self._in(aside), count * self._out(aside)
        if mode.params != "resident":
            come += (times if mode.params == "streamed" else 1) * self._in(shard.param_bytes)
        if home and mode.update == "host":
            go += self._out(shard.grad_bytes)
        if home and mode.update == "device-streamed":
            come += self._in(shard.state_bytes)
            go += self._out(shard.state_bytes)
            go += self._out(shard.param_bytes) if mode.params != "resident" else 0
        return come, go

    def sent_us(self, k: int, device: int, mode: Mode) -> int:
        """The time in which a device sends a shard's gradients to other replicas in a round, and
        its new parameters where these stay."""
        own, send, shard = self.strategy, self.links.send_us, self.strategy.shards[k]
        us = sum(send(shard.grad_bytes, *one) for one in own.added[k] if one.other == device)
        if mode.params == "resident":
            us += sum(send(shard.param_bytes, *one) for one in own.sent[k] if one.to == device)
        return us

    def _in(self, count: int) -> int:
        return self.links.prefetch_us(count) if count else 0

    def _out(self, count: int) -> int:
        return self.links.spill_us(count) if count else 0
