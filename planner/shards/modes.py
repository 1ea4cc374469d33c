"""A shard's modes: where its parameters stay, who updates it, what happens to its
activations, whether the boundary before it leaves the device.

    parameters   resident  always on the device
                 kept      loaded once a round, for forward and backward
                 streamed  loaded for forward, and again for backward
    update       host             gradient out, parameters (anew) in
                 device           parameters and state stay
                 device-streamed  state in, state out; parameters out unless resident
    activations  recompute | saved (the graph stays) | offload (packed, out and in again;
                 some microbatches may be recomputed all the same)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from planner.shards.shard_cost import ShardCost

Params = Literal["resident", "kept", "streamed"]
Update = Literal["host", "device", "device-streamed"]
Activations = Literal["recompute", "saved", "offload"]
Held = tuple[Params, Update]

ACTIVATIONS: tuple[Activations, ...] = ("recompute", "saved", "offload")
HELD: tuple[Held, ...] = (
    ("streamed", "host"),
    ("kept", "host"),
    ("resident", "device"),
    ("resident", "device-streamed"),
    ("kept", "device-streamed"),
    ("streamed", "device-streamed"),
)


@dataclass(frozen=True, order=True)
class Mode:
    """The decisions about one shard. recomputed: how many microbatches of one that packs are
    recomputed, spread evenly among the others."""

    params: Params = "streamed"
    update: Update = "host"
    activations: Activations = "recompute"
    spilled: bool = False  # the boundary before it waits on the host for its backward
    recomputed: int = 0

    def of(self, microbatch: int, count: int) -> "Mode":
        """The mode of one of `count` microbatches."""
        if not self.recomputed:
            return self
        before, after = (at * self.recomputed // count for at in (microbatch, microbatch + 1))
        return self.with_activations("recompute" if before < after else "offload")

    def with_activations(self, activations: Activations) -> "Mode":
        """The same for all microbatches."""
        return _for_all(self, activations)

    @property
    def held(self) -> Held:
        return self.params, self.update


@lru_cache(maxsize=256)  # asked for every op of a round
def _for_all(mode: Mode, activations: Activations) -> Mode:
    return replace(mode, activations=activations, recomputed=0)


def holdings(shard: ShardCost) -> tuple[Held, ...]:
    """The ways to hold this shard's parameters and state that differ from each other.

    What shards above use as well has to be there from the first forward to the last backward.
    """
    ways = _ways(shard)
    return tuple(h for h in ways if h[0] != "streamed") if shard.tie == "owner" else ways


def _ways(shard: ShardCost) -> tuple[Held, ...]:
    if not shard.param_bytes:
        return (("resident", "device"),)
    if not shard.grad_bytes:  # never updated
        return ("streamed", "host"), ("kept", "host"), ("resident", "device")
    if not shard.state_bytes:
        return tuple(held for held in HELD if held != ("resident", "device-streamed"))
    return HELD


def forward_us(shard: ShardCost, mode: Mode) -> int:
    """µs of one microbatch, packing left out."""
    return shard.forward_us if mode.activations == "recompute" else shard.graph_forward_us


def backward_us(shard: ShardCost, mode: Mode) -> int:
    """µs of one microbatch, recomputation included where it is needed."""
    match mode.activations:
        case "recompute":
            return shard.backward_us
        case "offload":
            return shard.graph_backward_us + shard.unpack_us
    return shard.graph_backward_us


def pass_us(shard: ShardCost, mode: Mode, kind: str) -> int:
    """µs of one microbatch of a forward, F, of a backward, B, or of its parts, I and W."""
    whole = backward_us(shard, mode)
    if kind == "F":
        return forward_us(shard, mode)
    if kind == "B":
        return whole
    if kind == "W":
        return shard.weight_us or 0
    return whole - shard.graph_backward_us + (shard.input_us or 0)


def transient_bytes(shard: ShardCost, mode: Mode, kind: str) -> int:
    """Bytes that an op of the shard takes beside its buffers: of one microbatch F, B or its parts I
    and W; N of its norms; U, its update, of the device. A forward that keeps its graph has it among
    them."""
    if mode.recomputed:
        ways = [mode.with_activations(one) for one in ("offload", "recompute")]
        return max(transient_bytes(shard, one, kind) for one in ways)
    recomputes = mode.activations == "recompute"
    match kind:
        case "F" if mode.activations == "saved":
            return shard.backward_transient_bytes
        case "F" if recomputes:
            return shard.forward_transient_bytes
        case "B" if recomputes:
            return shard.backward_transient_bytes
        case "I" if recomputes:
            return shard.input_transient_bytes
        case "N":
            return shard.norm_transient_bytes
        case "U":
            return shard.update_transient_bytes if mode.update != "host" else 0
    return shard.graph_transient_bytes + (shard.kept_grad_bytes if kind == "I" else 0)


@dataclass(frozen=True)
class Place:
    """Where a shard is: the first, the last, in a block whose microbatches go one by one."""

    first: bool
    last: bool
    block: bool


def possible(shard: ShardCost, mode: Mode, place: Place) -> bool:
    """True if the mode is possible for this shard.

    A graph keeps the addresses it was made with: a saved shard must hold its parameters and its
    input from forward to backward. The last shard has no forward of its own.
    """
    if mode.held not in holdings(shard):
        return False
    if mode.spilled and (place.first or place.last or place.block):
        return False
    if mode.params == "streamed" and (place.last or place.block) and shard.param_bytes:
        return False
    if mode.activations == "saved":
        return not place.last and not mode.spilled and mode.params != "streamed"
    if mode.activations == "offload":
        return not place.last and not place.block and bool(shard.offload_bytes)
    return True


def modes_of(shard: ShardCost, place: Place) -> Iterator[Mode]:
    """All modes that are possible for this shard."""
    for held in holdings(shard):
        for spilled in (False, True):
            for activations in ACTIVATIONS:
                mode = Mode(*held, activations, spilled)
                if possible(shard, mode, place):
                    yield mode


def nearest_mode(shard: ShardCost, mode: Mode, place: Place) -> Mode:
    """The mode, or the nearest one that is possible for this shard."""
    allowed = holdings(shard)
    if mode.held not in allowed:
        stays: Held = ("resident", "device")
        params, update = stays if mode.params == "resident" else allowed[0]
        mode = replace(mode, params=params, update=update)
    if mode.params == "streamed" and (place.last or place.block):
        mode = replace(mode, params="kept")  # used all the time, so it is the same
    if place.first or place.last or place.block or mode.activations == "saved":
        mode = replace(mode, spilled=False)
    if not possible(shard, mode, place):
        mode = mode.with_activations("recompute")
    return mode
