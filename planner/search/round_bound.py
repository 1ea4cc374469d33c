"""A time that a strategy's round is not below, from what its shards cost: nothing is laid out."""

from functools import lru_cache
from typing import NamedTuple

from planner.shards import Links, Mode, Strategy, TaskCosts, backward_us, forward_us


class _Own(NamedTuple):
    """µs of one shard in a round. up, down: passes of all microbatches; once: norms, and an update
    on the device that follows them at once; late: one that waits for all norms; into, out, host: of
    copies and of an update on the host; back: for what changes parameters to go to the host, to be
    used, and for them to come again; None where they stay."""

    up: int
    down: int
    once: int
    late: int
    into: int
    out: int
    host: int
    back: int | None


@lru_cache(maxsize=1 << 14)
def _own(costs: TaskCosts, first: int, end: int, mode: Mode, links: Links) -> _Own:
    """The µs of layers first..end-1 as a shard in this mode."""
    shard, count = costs.shard(first, end), costs.microbatches
    ways = [mode.of(m, count) for m in range(count)] if mode.recomputed else [mode] * count
    comes = links.cast_us(shard.param_bytes) if shard.cast else links.prefetch_us(shard.param_bytes)
    loads = {"resident": 0, "kept": 1, "streamed": 2}[mode.params] if shard.param_bytes else 0
    trained, host = shard.grad_bytes > 0, mode.update == "host"
    into, out, back = [comes] * loads, list[int](), None
    if trained and host:
        out.append(links.spill_us(shard.grad_bytes))
        back = out[0] + shard.update_host_us + comes
    if trained and mode.update == "device-streamed":
        moves = loads > 0 and not shard.cast
        out += [links.spill_us(shard.param_bytes)] if moves else []
        if shard.state_bytes:
            into.append(links.prefetch_us(shard.state_bytes))
            out.append(links.spill_us(shard.state_bytes))
        back = out[0] + comes if out else None
    aside = count * shard.in_bytes * mode.spilled
    if mode.activations == "offload":
        packed = (count - mode.recomputed) * (shard.offload_bytes or 0)
        into += [links.prefetch_us(packed)] if packed else []
        out += [links.spill_us(packed)] if packed else []
    if aside:
        into.append(links.prefetch_us(aside))
        out.append(links.spill_us(aside))
    update = shard.update_device_us if trained and not host else 0
    return _Own(
        up=sum(forward_us(shard, way) for way in ways),
        down=sum(backward_us(shard, way) for way in ways),
        once=(shard.norm_us if costs.noted and trained else 0) + (0 if costs.noted else update),
        late=update if costs.noted else 0,
        into=sum(into),
        out=sum(out),
        host=shard.update_host_us if trained and host else 0,
        back=back if loads else None,
    )


def round_bound_us(strategy: Strategy, links: Links) -> int:
    """A time that the strategy's round is not below: what each stream has to do, and a shard's way
    from its first forward to its last backward and through the host back to where it began."""
    pairs = zip(strategy.shards, strategy.modes, strict=True)
    own = [_own(strategy.costs, shard.first, shard.end, mode, links) for shard, mode in pairs]
    own[-1] = own[-1]._replace(up=0)
    late = _late(strategy, own)
    least = max(
        sum(one.up + one.down + one.once + one.late for one in own),
        sum(one.into for one in own),
        sum(one.out for one in own),
        sum(one.host for one in own),
    )
    for k, (one, way) in enumerate(zip(own, _ways(strategy, own), strict=True)):
        if one.back is not None:
            # A gradient goes while it is noted.
            noted = strategy.shards[k].norm_us
            least = max(least, way - noted + late[k] + one.back)
    return least


def _ways(strategy: Strategy, own: list[_Own]) -> list[int]:
    """For every shard µs that compute takes from its first forward to its last backward; in a block
    from the last microbatch's first forward there, before which others go through the block."""
    first = strategy.bottom if strategy.turn else strategy.last
    block, many = own[first:], strategy.costs.microbatches if strategy.turn else 1
    found, way = list[int](), sum(one.up for one in block) // many
    for one in block[::-1]:
        way += one.down // many + one.once
        found.append(way)
    way = sum(one.up + one.down + one.once for one in block)
    for one in own[first - 1 :: -1] if first else ():
        way += one.up + one.down + one.once
        found.append(way)
    return found[::-1]


def _late(strategy: Strategy, own: list[_Own]) -> list[int]:
    """For every shard µs from the last backward of all to the end of its update on the device,
    where that waits for all norms: those of shards that stay are made first."""
    before = sum(
        one.late for one, mode in zip(own, strategy.modes, strict=True) if mode.update == "device"
    )
    found = list[int]()
    for one, mode in zip(own, strategy.modes, strict=True):
        if mode.update == "device-streamed":
            before += one.late
            found.append(before)
        else:
            found.append(0)
    return found
