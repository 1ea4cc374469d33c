"""The modes that a shard of a pipeline may have, and the memory and the time that each takes."""

from dataclasses import dataclass

from planner.lowering import PipelineStrategy
from planner.pipelines.windows import Held, Window
from planner.shards import Links, Mode, backward_us, forward_us, holdings, pass_bytes
from profiles.codec import align

_SLOTS = 3  # through which boundaries come and go


@dataclass(frozen=True, eq=False)
class Choices:
    """The modes that each shard may have in a pipeline."""

    strategy: PipelineStrategy
    links: Links

    def modes(self, k: int) -> list[Mode]:
        """The modes of a shard: graph saved or not, held in any way that does it."""
        shard, last = self.strategy.shards[k], self.strategy.last
        # Its home writes what others load, and their nodes would have what it was before.
        users = (self.strategy.homes[k], *self.strategy.users[k])
        sent = shard.grad_bytes > 0 and self.links.across(users)
        found = []
        for params, update in holdings(shard):
            if sent and (params != "resident" or update == "host"):
                continue
            if params == "streamed" and (k == last or k in self.strategy.halved):
                continue  # it stays, or its graph goes on from I to W
            found.append(Mode(params, update))
            if params != "streamed" and k < last:
                found.append(Mode(params, update, "saved"))
            if shard.offload_bytes and k < last:
                found.append(Mode(params, update, "offload"))
            if 0 < k < last:
                found.append(Mode(params, update, spilled=True))
        return found

    def held_bytes(self, window: Window, held: Held, mode: Mode) -> int:
        """The bytes that a shard has on a device in a window."""
        k = held.shard
        shard = self.strategy.on[window.device][k]
        home = self.strategy.homes[k] == window.device
        few = min(held.flying, _SLOTS)
        size = (few if mode.spilled else held.flying) * align(shard.in_bytes)
        if mode.activations == "offload":
            size += few * align(shard.offload_bytes or 0)
        if mode.params != "streamed" or held.near:
            size += align(shard.param_bytes)
        if home and mode.update == "device":
            size += align(shard.state_bytes)
        if held.learns:
            size += align(shard.grad_bytes)
            size += align(shard.state_bytes) if home and mode.update == "device-streamed" else 0
        if mode.activations == "saved":
            size += held.flying * shard.saved_bytes
        return size + self._transient(window, held, mode)

    def _transient(self, window: Window, held: Held, mode: Mode) -> int:
        """The bytes that the op takes, if it is one of this shard."""
        k, now = held.shard, window.now
        if now.shard != k:
            return 0
        shard, saved = self.strategy.on[window.device][k], mode.activations == "saved"
        if now.kind == "F":
            # The graph that it makes is among those in flight.
            size = shard.backward_transient_bytes - shard.saved_bytes
            packs = shard.graph_transient_bytes, shard.forward_transient_bytes
            return size if saved else packs[mode.activations == "recompute"]
        return pass_bytes(shard, mode, now.kind)

    def compute_us(self, k: int, device: int, mode: Mode, count: int) -> int:
        """A shard's time on a device in a round."""
        shard = self.strategy.on[device][k]
        forward = forward_us(shard, mode) if k < self.strategy.last else 0
        own = shard.update_device_us if mode.update != "host" else 0
        forward += self.links.pack_us(shard) if mode.activations == "offload" else 0
        each = forward + backward_us(shard, mode)
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

    def _in(self, count: int) -> int:
        return self.links.prefetch_us(count) if count else 0

    def _out(self, count: int) -> int:
        return self.links.spill_us(count) if count else 0
