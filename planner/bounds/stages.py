"""A lower bound on a round of one task in given stages on several devices."""

from collections.abc import Sequence
from itertools import pairwise

from planner.shards import TaskCosts


def stages_us(
    costs: TaskCosts, ends: Sequence[int], replicas: Sequence[int], *, split: bool
) -> int:
    """The largest sum over devices: a device computes with all its microbatches, after forwards of
    one through the stages before and before its backwards through them.

    ends: those of the stages, from 0 on, which take turns on the devices. split: backwards may be
    done in two parts.
    """
    depth, before, trained, most = len(replicas), 0, False, 0
    first, whole = ("way", "least") if split else ("backward_us", "backward_us")
    own, both = [0] * depth, [0] * depth
    for place, (a, b) in enumerate(pairwise(ends)):
        at = place % depth
        count = -(-costs.microbatches // replicas[at])
        own[at] += count * costs.total(first, a, b)
        both[at] += count * costs.total(whole, a, b)
        if place < depth:
            most = max(most, before + own[at])
        trained |= costs.total("grad_bytes", a, b) > 0
        before += costs.total(first, a, b) * trained
    return max(most, *both)
