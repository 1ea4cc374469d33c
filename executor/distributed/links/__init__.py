"""The links between two processes: connections for messages, wires for bytes, the difference of
their clocks."""

from executor.distributed.links.addresses import grouped
from executor.distributed.links.clock import Clock
from executor.distributed.links.dialing import connections
from executor.distributed.links.mesh import Mesh
from executor.distributed.links.wires import GroupWire, Pair, crossing, groups, wires

__all__ = [
    "Clock",
    "GroupWire",
    "Mesh",
    "Pair",
    "connections",
    "crossing",
    "grouped",
    "groups",
    "wires",
]
