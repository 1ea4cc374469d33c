"""Tied weights across shards: who owns them, and who else uses them.

The *owner* is the shard of a group's first layer: it holds the parameters, gathers their gradients
and updates them. The *holders* are the later shards with layers of the group: they read the
owner's parameters where they are, and hand what they add to a microbatch's gradients down, from
the last of them to the first and on to the owner.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from plans.schema import Task


class Crossing(NamedTuple):
    """The shard that owns all ties of a task that cross shards, and its holders, ascending."""

    owner: int
    holders: tuple[int, ...]

    def above(self, shard: int) -> int | None:
        """The holder that hands its sum to this shard; None for the last one."""
        return min((k for k in self.holders if k > shard), default=None)


def homes(task: Task, group: tuple[int, ...]) -> list[int | None]:
    """The shard of every layer of a group, None for one that is in no shard.

    Of shards that are not in order, which another rule tells, nothing sensible follows."""
    firsts = [shard.first_layer for shard in task.shards]
    found = [bisect_right(firsts, layer) - 1 for layer in group]
    return [
        k if k >= 0 and layer < task.shards[k].end_layer else None
        for k, layer in zip(found, group, strict=True)
    ]


def _apart(task: Task) -> dict[tuple[int, ...], list[int | None]]:
    """The shards of groups that do not lie in one."""
    every = {group: homes(task, group) for group in task.ties}
    return {group: places for group, places in every.items() if len({*places}) > 1}


class _Same:
    """A task by identity: to hash one by value takes longer the larger it is."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.task is self.task


def crossing(task: Task) -> Crossing | None:
    """The ties that cross shards; None where none does, or where they make no sense."""
    return _crossing(_Same(task)) if task.tie_bytes else None


@lru_cache(maxsize=256)
def _crossing(same: _Same) -> Crossing | None:
    task = same.task
    apart = _apart(task).values()
    owners = {places[0] for places in apart}
    every = [k for k in {place for places in apart for place in places} if k is not None]
    if len(owners) != 1 or owners != {min(every, default=None)}:
        return None
    owner, *holders = sorted(every)
    return Crossing(owner, tuple(holders))


def tie_rules(task: Task) -> Iterator[str]:
    """Tied layers share a shard, or all that do not have one owner."""
    apart = _apart(task)
    astray = {g: places for g in task.ties if None in (places := homes(task, g))}
    for group, places in (astray if task.tie_bytes else apart | astray).items():
        told = ", ".join(sorted({"no shard" if n is None else f"s{n}" for n in places}))
        yield f"{task.name}: tied layers {list(group)} lie in {told}, expected one shard"
    if task.tie_bytes and not apart:
        yield (
            f"{task.name}: has {task.tie_bytes} tie bytes, but no tied layers lie in several "
            "shards, expected 0"
        )
    elif task.tie_bytes and not astray and crossing(task) is None:
        owners = ", ".join(f"s{n}" for n in sorted({places[0] or 0 for places in apart.values()}))
        yield f"{task.name}: ties across shards are owned by {owners}, expected one owner"
