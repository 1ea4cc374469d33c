"""Which shards stay on the device: a resource-load integer program.

    minimise T  with  T ≥ compute, T ≥ h2d, T ≥ d2h, T ≥ host   (loads of one round)
                      T ≥ compute of shards k.. + spill, update and prefetch of k, for streamed k
                and   parameters + optimizer state of resident shards ≤ the bytes left

The second line is the way round: from F of shard k, up, down to its B, and through the host to
its F in the next round; for shard 0 nothing hides the host part. A resident shard costs compute
time for its update; a streamed one costs two prefetches and a gradient spill, and its update on
the host. The loads are estimates, of prefetches at the turn above all; the simulator decides.
"""

from dataclasses import dataclass
from typing import Any

from planner.choice import Choice
from planner.costs import Links
from planner.solver import minimise, solve


@dataclass(frozen=True)
class Loads:
    """µs per round and resource when a shard is streamed, or resident."""

    compute_us: int
    h2d_us: int
    d2h_us: int
    host_us: int


def loads(choice: Choice, index: int, links: Links) -> tuple[Loads, Loads]:
    """What shard `index` costs every round when streamed, and when resident."""
    shard, last = choice.shards[index], len(choice.shards) - 1
    once = links.prefetch_us(shard.param_bytes)
    # The shards at the turn from forward to backward are still in their slots.
    prefetches = 1 if index == last or index > last - choice.slots else 2
    compute = choice.costs.microbatches * (
        shard.backward_us + (shard.forward_us if index < last else 0)
    )
    if not shard.param_bytes:
        return Loads(compute, 0, 0, 0), Loads(compute, 0, 0, 0)
    spill = links.spill_us(shard.grad_bytes) if shard.grad_bytes else 0
    host = shard.update_host_us if shard.grad_bytes else 0
    device = shard.update_device_us if shard.grad_bytes else 0
    return Loads(compute, prefetches * once, spill, host), Loads(compute + device, 0, 0, 0)


def choose(
    choice: Choice, links: Links, free_bytes: int, *, seconds: float, seed: int
) -> frozenset[int]:
    """Shards to keep resident in `free_bytes`; none when the solver finds nothing in time.

    Among equal loads it moves the fewest bytes and prefers the shards that are used around the
    turn of the round, whose prefetch nothing hides.
    """
    indices = [i for i, shard in enumerate(choice.shards) if shard.param_bytes]
    if min((choice.shards[i].resident_bytes for i in indices), default=1) > free_bytes:
        return frozenset()
    model = minimise("residency")
    stay = {i: model.add_variable(f"stay_{i}", 0, 1, cat="Binary") for i in indices}
    period = model.add_variable("period_us", 0)
    pairs = [loads(choice, index, links) for index in range(len(choice.shards))]
    moved = sum((2 * choice.shards[i].param_bytes + i) * (1 - stay[i]) for i in indices)
    total = sum(2 * choice.shards[i].param_bytes + i for i in indices)
    model += period + moved * (1.0 / max(1, total))
    for resource in ("compute_us", "h2d_us", "d2h_us", "host_us"):
        base = sum(getattr(streamed, resource) for streamed, _ in pairs)
        saved = sum(
            (getattr(pairs[i][1], resource) - getattr(pairs[i][0], resource)) * stay[i]
            for i in indices
        )
        model += period >= base + saved
    above: Any = 0
    for k in range(len(pairs) - 1, -1, -1):
        streamed, resident = pairs[k]
        above += streamed.compute_us
        if k in stay:
            above += (resident.compute_us - streamed.compute_us) * stay[k]
            way_us = (
                streamed.d2h_us + streamed.host_us + links.prefetch_us(choice.shards[k].param_bytes)
            )
            model += period >= above + way_us * (1 - stay[k])
    model += sum(choice.shards[i].resident_bytes * stay[i] for i in indices) <= free_bytes
    if not solve(model, seconds=seconds, seed=seed).found:
        return frozenset()
    return frozenset(i for i in indices if stay[i].value() > 0.5)
