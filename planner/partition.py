"""Shard boundaries: cheapest contiguous cuts of a chain of layers, exactly, by dynamic programming.

A cut into shards costs the forward of every shard but the last (whose backward computes the
loss and recomputes nothing twice) and a fixed price per shard for its copies and launches.
"""

from collections.abc import Sequence

from planner.costs import Caps, TaskCosts


def cut(
    costs: TaskCosts, points: Sequence[int], caps: Caps, shard_us: int
) -> tuple[int, ...] | None:
    """The cheapest cuts 0 = c0 < c1 < ... = layers, all in `points`; None when a piece between
    two neighbouring points alone exceeds the caps.

    Among equal costs the cut with larger shards at the end wins (it was found first).
    """
    best: list[tuple[int, int]] = [(0, 0)] * len(points)  # price up to the end, next point
    end = len(points) - 1
    forward = [costs.microbatches * costs.total("forward", 0, point) for point in points]
    for left in range(end - 1, -1, -1):
        options = []
        for right, needs in costs.growing(points, left):
            if needs.param_bytes > caps.param_bytes or needs.transient_bytes > caps.transient_bytes:
                break
            if right == end:
                options.append((shard_us, right))
            elif best[right][1]:
                price = best[right][0] + shard_us + forward[right] - forward[left]
                options.append((price, right))
        best[left] = min(options, default=(0, 0))
    if not best[0][1]:
        return None
    cuts, position = [0], 0
    while position < end:
        position = best[position][1]
        cuts.append(points[position])
    return tuple(cuts)


def even(costs: TaskCosts, items: Sequence[tuple[int, int]], per_shard: float) -> tuple[int, ...]:
    """Cuts into shards of about `per_shard` average items each, from the top down: of parameters,
    of activations and of time. An item that is larger than that is a shard of its own.
    """
    shards = [costs.shard(*item) for item in items]
    sizes = [(s.param_bytes, s.saved_bytes, s.forward_us + s.backward_us) for s in shards]
    limits = [per_shard * 1.1 * sum(column) / len(items) for column in zip(*sizes, strict=True)]
    cuts: list[int] = [items[-1][1]]
    held: tuple[int, ...] = (0, 0, 0)
    for (_, end), size in zip(reversed(items), reversed(sizes), strict=True):
        together = tuple(a + b for a, b in zip(held, size, strict=True))
        if end < cuts[-1] and any(a > b for a, b in zip(together, limits, strict=True)):
            cuts.append(end)
            together = size
        held = together
    return (0, *reversed(cuts))
