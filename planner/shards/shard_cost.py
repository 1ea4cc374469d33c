"""The costs of one shard and the rates of a device's links: the numbers that strategies go by."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from profiles.codec import align
from profiles.schema import Device, Rate


@dataclass(frozen=True)
class ShardCost:
    """Bytes and times of layers first..end-1, times per microbatch, updates per step."""

    first: int
    end: int
    param_bytes: int
    grad_bytes: int
    state_bytes: int
    in_bytes: int
    rng_draws: int | None
    forward_us: int
    backward_us: int
    graph_forward_us: int
    graph_backward_us: int
    update_device_us: int
    update_host_us: int
    norm_us: int
    saved_bytes: int
    offload_bytes: int | None
    pack_us: int | None  # of a forward, beyond graph_forward_us; None: not measured
    unpack_us: int  # of a backward, beyond graph_backward_us
    forward_transient_bytes: int
    backward_transient_bytes: int
    graph_transient_bytes: int
    update_transient_bytes: int
    norm_transient_bytes: int
    tie: str = ""  # in a group of tied layers that lie in several shards
    cast: bool = False  # the host has no parameters of it but makes them from masters
    in_turn: bool = False  # one device has to run all its microbatches, in ascending order
    input_us: int | None = None  # of I, on a graph that is there; None: it cannot be split
    weight_us: int | None = None  # of W
    left_bytes: int | None = None  # alive from I to W
    kept_grad_bytes: int = 0  # of them
    input_transient_bytes: int = 0  # of I that runs its forward again

    @property
    def param_out_bytes(self) -> int:
        """Bytes of parameters that go to the host after an update on the device."""
        return 0 if self.cast else self.param_bytes

    def bytes_of(self, role: str) -> int:
        """Bytes of "param", "grad" or "state"."""
        return {"param": self.param_bytes, "grad": self.grad_bytes, "state": self.state_bytes}[role]

    @property
    def kept(self) -> dict[str, int]:
        """The bytes that the host keeps of the shard between segments, by role."""
        return {"param": 0 if self.cast else self.param_bytes, "state": self.state_bytes}

    @property
    def kept_bytes(self) -> int:
        """The same in all, in buffers of the host store."""
        return sum(map(align, self.kept.values()))


class MicrobatchCost(NamedTuple):
    """The costs of one microbatch: of every shard, of its batch, and of what waits of its gradients
    of tied parameters."""

    shards: tuple[ShardCost, ...]
    batch_bytes: int
    tie_bytes: int


@dataclass(frozen=True)
class Links:
    """Rates to one device. `both` are those while the other direction is busy as well.

    node: devices of each node, where a program may be on several, from a node's first device on."""

    h2d: Rate
    d2h: Rate
    h2d_both: Rate
    d2h_both: Rate
    d2d: Rate | None = None  # None when not measured: then nothing is offloaded
    cast: Rate | None = None  # None when not measured: then nothing is cast
    cast_both: Rate | None = None
    p2p: Rate | None = None  # None when not measured: then by way of the host
    net: Rate | None = None  # None where there is one node
    node: int | None = None

    @classmethod
    def of(cls, device: Device, node: int | None = None) -> "Links":
        kinds = {link.kind: link for link in device.links}
        h2d, d2h = kinds["h2d"], kinds["d2h"]
        d2d, cast, p2p, net = (kinds.get(kind) for kind in ("d2d", "cast", "p2p", "net"))
        return cls(
            h2d.alone,
            d2h.alone,
            h2d.both,
            d2h.both,
            d2d.alone if d2d else None,
            cast.alone if cast else None,
            cast.both if cast else None,
            p2p.both if p2p else None,
            net.both if net else None,
            node,
        )

    @property
    def alone(self) -> "Links":
        """The rates while the other direction rests."""
        return replace(self, h2d_both=self.h2d, d2h_both=self.d2h, cast_both=self.cast)

    @property
    def best_h2d(self) -> int:
        """Bytes per second that no copy exceeds, whatever else is going on."""
        return max(self.h2d.bytes_per_s, self.h2d_both.bytes_per_s)

    @property
    def best_d2h(self) -> int:
        return max(self.d2h.bytes_per_s, self.d2h_both.bytes_per_s)

    def prefetch_us(self, count: int) -> int:
        """Predicted time of a host→device copy inside a round, where both directions are used."""
        return copy_us(self.h2d_both, count)

    def cast_us(self, count: int) -> int:
        """Predicted time of a prefetch of so many bytes of parameters that the host casts."""
        if self.cast_both is None:
            return self.prefetch_us(count)
        copied = self.prefetch_us(count) + self.cast_both.latency_us
        return max(copied, copy_us(self.cast_both, count) + self.h2d_both.latency_us)

    def spill_us(self, count: int) -> int:
        """Predicted time of a device→host copy inside a round, where both directions are used."""
        return copy_us(self.d2h_both, count)

    def node_of(self, device: int) -> int:
        """The node of a program's device, counted from that of its first."""
        return device // self.node if self.node else 0

    def across(self, devices: Iterable[int]) -> bool:
        """True if a program's devices are on several nodes."""
        return len(set(map(self.node_of, devices))) > 1

    def send_us(self, count: int, source: int = 0, target: int = 0) -> int:
        """Predicted time of a copy from one device of a program to another, by default of the same
        node."""
        if self.net and self.node_of(source) != self.node_of(target):
            return copy_us(self.net, count)
        if self.p2p:
            return copy_us(self.p2p, count)
        return self.spill_us(count) + self.prefetch_us(count)

    def add_us(self, count: int) -> int:
        """Predicted time of adding so many bytes of gradients to others on the device: three times
        as many are moved as in a copy of them, two of which move them once."""
        return 0 if self.d2d is None else 3 * copy_us(self.d2d, count) // 2

    def pack_us(self, shard: ShardCost) -> int:
        """Predicted time of packing what a shard's graph keeps: as measured, or as long as the
        bytes are copied inside the device."""
        if shard.pack_us is not None or not self.d2d:
            return shard.pack_us or 0
        return copy_us(self.d2d, shard.offload_bytes or 0)


def copy_us(rate: Rate, count: int) -> int:
    """Time of a copy of `count` bytes."""
    return rate.latency_us + -(-count * 1_000_000 // rate.bytes_per_s)
