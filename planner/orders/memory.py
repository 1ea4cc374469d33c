"""The memory that passes hold on their devices."""

from collections.abc import Sequence

from planner.orders.passes import Order, Pass, Pipeline
from planner.orders.timing import NONE, Network, earliest


def can_run(pipeline: Pipeline, order: Order) -> bool:
    """No device waits for itself, and none holds more than its limit."""
    network = Network.of(pipeline, order)
    if NONE in earliest(network, network.lines):
        return False
    limits = pipeline.limits or peaks(pipeline, order)
    return all(a <= b for a, b in zip(peaks(pipeline, order), limits, strict=True))


def peaks(pipeline: Pipeline, order: Order) -> tuple[int, ...]:
    """The most that passes of each device hold at a time."""
    return tuple(_peak(pipeline, device, line) for device, line in enumerate(order))


def _peak(pipeline: Pipeline, device: int, line: Sequence[Pass]) -> int:
    held = peak = 0
    for item in line:
        first, last = changes(pipeline, device, item)
        held += first
        peak = max(peak, held)
        held += last
    return peak


def changes(pipeline: Pipeline, device: int, item: Pass) -> tuple[int, int]:
    """The memory that a pass adds to its device when it starts, and when it ends."""
    cost = pipeline.costs[device][item.shard]
    begins = item.kind == "F" or (item.kind in "BI" and not pipeline.has_forward(item.shard))
    ends = {"F": 0, "B": -cost.held, "I": cost.left - cost.held, "W": -cost.left}
    return cost.held if begins else 0, ends[item.kind]
