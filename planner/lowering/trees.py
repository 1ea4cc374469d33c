"""Replicas in a tree: gradients are added in halves on the way to a shard's home, and parameters
come back the same way.

replicas   0    1    2    3    4        home 2
gradients  0 <─ 1    2 <─ 3    4        neighbours
           0 ───────▶2         4        then twos
                     2 <────── 4        then fours: ((0+1)+(2+3))+4

Two sums are the same in either order, so what is added to what, and its bits, do not depend on the
home.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from planner.shards import Links


class Join(NamedTuple):
    """The sum of one device is added to that of another."""

    to: int
    other: int


def joins(devices: Sequence[int], home: int) -> tuple[Join, ...]:
    """The additions that bring the sum of all devices home, in order. Trees to other homes have
    other inner devices."""
    place, heads, found = devices.index(home), list(devices), list[Join]()
    while len(heads) > 1:
        pairs = zip(heads[place % 2 :: 2], heads[1 - place % 2 :: 2], strict=False)
        level = [Join(*pair) for pair in pairs]
        found += level
        heads = [join.to for join in level] + heads[2 * len(level) :]
        place //= 2
    return tuple(found)


def sums(
    trees: Sequence[Sequence[Join]],
    ends: Sequence[Mapping[int, int]],
    sizes: Sequence[int],
    links: Links,
) -> list[list[int]]:
    """The times at which each addition of every tree can begin, if devices have their own parts of
    a tree, of so many bytes, at its ends. A device sends sums one after the other, as they are
    ready."""
    have, free = [dict(own) for own in ends], Counter[int]()
    found, come = [[0] * len(tree) for tree in trees], dict[tuple[int, int], int]()
    lines = [_lines(tree) for tree in trees]
    ready = list[tuple[int, int, int]]()

    def sends(k: int, device: int) -> None:
        line = lines[k][device]
        if line and trees[k][line[-1]].other == device:
            heappush(ready, (have[k][device], k, line[-1]))

    for k, own in enumerate(lines):
        for device in own:
            sends(k, device)
    while ready:
        us, k, n = heappop(ready)
        to, other = trees[k][n]
        come[k, n] = free[other] = max(us, free[other]) + links.send_us(sizes[k], other, to)
        line = lines[k][to]
        while line and (k, line[-1]) in come:
            at = line.pop()
            found[k][at] = max(have[k][to], come[k, at])
            have[k][to] = found[k][at] + links.add_us(sizes[k])
        sends(k, to)
    return found


def _lines(tree: Sequence[Join]) -> dict[int, list[int]]:
    """The additions that each device takes part in, the first one last; it sends in the last."""
    found: dict[int, list[int]] = {}
    for n in reversed(range(len(tree))):
        for device in tree[n]:
            found.setdefault(device, []).append(n)
    return found


def spread(tree: Sequence[Join], home: int, size: int, links: Links) -> dict[int, int]:
    """When each device of a tree has what the home has from 0 on and all send on in turn."""
    have, free = {home: 0}, {home: 0}
    for device, there in reversed(tree):
        free[device] += links.send_us(size, device, there)
        have[there] = free[there] = free[device]
    return have


def needed(tree: Sequence[Join], home: int, end: int, size: int, links: Links) -> dict[int, int]:
    """The latest time at which each device must have its own part, for all to be added by `end`."""
    found = {home: end}
    for to, other in reversed(tree):
        found[to] -= links.add_us(size)
        found[other] = found[to] - links.send_us(size, other, to)
    return found
