"""What lies between two processes: wires that carry bytes, and the difference of their clocks."""

from executor.distributed.links.clock import Clock, machine_id
from executor.distributed.links.wires import GroupWire, Pair, pairs, wires

__all__ = ["Clock", "GroupWire", "Pair", "machine_id", "pairs", "wires"]
