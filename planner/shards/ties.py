"""Tied weights that a plan may have in several shards: which, and who owns them.

A task is planned in two ways, with all ties *joined* in one shard each, and with one group *apart*:
its first layer's shard owns the parameters, the other layers use them there, and what those add to
a microbatch's gradients waits for the owner's backward.
"""

from typing import Literal, NamedTuple

from msgspec import structs

from profiles.schema import Task

Part = Literal["", "owner", "holder"]  # that a shard plays in the group that is apart


class Group(NamedTuple):
    """Layers that share a parameter, and the bytes of what they share in gradients."""

    layers: tuple[int, ...]
    bytes: int

    def part(self, first: int, end: int) -> Part:
        """The part of a shard of layers first..end-1."""
        inside = sum(first <= layer < end for layer in self.layers)
        if inside in (0, len(self.layers)):
            return ""
        return "owner" if first <= self.layers[0] < end else "holder"


def separable_ties(task: Task) -> Group | None:
    """The group that may be apart: of those that were measured the one with most layers between."""
    if not task.tie_bytes:
        return None
    groups = [Group(*pair) for pair in zip(task.ties, task.tie_bytes, strict=True) if pair[1]]
    return max(groups, key=lambda group: group.layers[-1] - group.layers[0], default=None)


def untied(task: Task) -> Task:
    """The task without that group, which costs less than either way to plan it."""
    group = separable_ties(task)
    if group is None:
        return task
    pairs = zip(task.ties, task.tie_bytes, strict=True)
    kept = [pair for pair in pairs if pair[0] != group.layers]
    return structs.replace(
        task, ties=tuple(tie for tie, _ in kept), tie_bytes=tuple(size for _, size in kept)
    )


def held_gradients(task: Task, apart: Group | None) -> list[int]:
    """Bytes per owner of a tied parameter: autograd holds its users' gradients until all are there.

    The sums so far of all of them, and the next one; of whole layers, since the profile does not
    say which of their parameters are tied, but not of a group's last, which has none for others.
    Apart, the sum so far is there for all but the last user, and the next one as well where a shard
    has several.
    """
    held = [0] * len(task.layers)
    split = apart.layers if apart else ()
    for group in (group for group in task.ties if group != split):
        sums = [task.layers[layer].grad_bytes for layer in group[:-1]]
        for layer, size in zip(group, sums, strict=False):
            held[layer] += size
        held[group[0]] += max(sums)
    if apart:
        for layer in split[:-1]:
            held[layer] += apart.bytes * (1 if layer == split[0] else 2)
    return held
