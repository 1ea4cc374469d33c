"""The links between two processes: connections for messages, wires for bytes, the difference of
their clocks."""

from executor.distributed.links.addresses import interface_of, own_address
from executor.distributed.links.clock import Clock
from executor.distributed.links.mesh import Mesh
from executor.distributed.links.wires import GroupWire, groups, wires

__all__ = [
    "Clock",
    "GroupWire",
    "Mesh",
    "groups",
    "interface_of",
    "own_address",
    "wires",
]
