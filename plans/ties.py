"""Tied weights across shards: who owns them, and who else uses them.

The *owner* is the shard of a group's first layer: it holds the parameters, gathers their gradients
and updates them. The *holders* are the later shards with layers of the group: they read the
owner's parameters where they are, and hand what they add to a microbatch's gradients down, from
the last of them to the first and on to the owner.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Crossing(NamedTuple):
    """The shard that owns all ties of a task that cross shards, and its holders, ascending."""

    owner: int
    holders: tuple[int, ...]

    def above(self, shard: int) -> int | None:
        """The holder that hands its sum to this shard; None for the last one."""
        return min((k for k in self.holders if k > shard), default=None)


def homes(ends: Sequence[int], group: Iterable[int]) -> list[int | None]:
    """The shard of every layer of a group, None for one that is in no shard. ends: the layers at
    which shards end; of shards without order, which a rule tells, nothing sensible follows."""
    found = [bisect_right(ends, layer) for layer in group]
    return [shard if shard < len(ends) else None for shard in found]


def crossing(ends: Sequence[int], ties: Iterable[Iterable[int]]) -> Crossing | None:
    """The ties that cross shards; None where none does, or where they make no sense."""
    apart = [places for group in ties if len({*(places := homes(ends, group))}) > 1]
    every = {shard for places in apart for shard in places if shard is not None}
    if not every or {places[0] for places in apart} != {min(every)}:
        return None
    owner, *holders = sorted(every)
    return Crossing(owner, tuple(holders))
