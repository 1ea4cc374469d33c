"""A time, and bytes, that a strategy's round is not below, from what its shards cost: nothing is
laid out."""

from functools import lru_cache
from typing import NamedTuple

from planner.shards import Links, Mode, Strategy, TaskCosts, backward_us, forward_us
from profiles.codec import align


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


class _Held(NamedTuple):
    """Bytes that live because of one shard: those that stay; in the step of its last backward, and
    of them its boundary; before it, in those of shards above, and behind it in those below."""

    stays: int
    own: int
    boundary: int
    before: int
    behind: int


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


def round_bound_bytes(strategy: Strategy) -> int:
    """Bytes that the strategy's round takes of its device at least: the reserve, what stays, and
    what else lives in the step of a shard's last backward, of the shard for which that is most.

    Then parameters that are kept for shards below are there, and boundaries that backwards are yet
    to come to, with the gradients that come to this one; its own parameters and gradients, what it
    packed and, where its update follows at once, its state. Gradients of a block are there since
    its first microbatch and, where updates wait for norms, all that the device updates."""
    held = [_held(strategy, k) for k in range(len(strategy.modes))]
    before, most, behind, comes = sum(one.before for one in held), 0, 0, 0
    for one in reversed(held):
        before -= one.before
        most = max(most, before + one.own + comes + behind)
        behind, comes = behind + one.behind, one.boundary
    batches = strategy.parts * align(strategy.bytes_of("batch", 0, 0))
    stays = sum(one.stays for one in held) + align(strategy.costs.task.norm_bytes) + batches
    return strategy.reserve_bytes + stays + most


def _held(strategy: Strategy, k: int) -> _Held:
    """The bytes that live because of shard k."""
    shard, mode, noted = strategy.shards[k], strategy.modes[k], strategy.costs.noted
    param, grad, state = map(align, (shard.param_bytes, shard.grad_bytes, shard.state_bytes))
    moves, streams = mode.params != "resident", mode.update == "device-streamed"
    slots = 1 if k > strategy.bottom else strategy.parts  # of a block one microbatch at a time
    boundary = slots * align(strategy.bytes_of("x", k, 0)) if k else 0
    packed = align(strategy.bytes_of("saved", k, 0)) if mode.activations == "offload" else 0
    packed *= 1 if mode.recomputed else strategy.ring
    followed = state if streams and grad and not noted else 0
    return _Held(
        stays=param * (not moves) + state * (mode.update == "device"),
        own=param * moves + grad + followed + boundary + packed,
        boundary=boundary,
        before=param * (mode.params == "kept")
        + grad * strategy.in_block(k)
        + boundary * (not mode.spilled),
        behind=(grad + param * (moves and streams)) * (noted and mode.update != "host"),
    )
