"""The links between two processes: messages, and wires for bytes."""

from executor.distributed.links.mesh import Mesh
from executor.distributed.links.wires import GroupWire, Pair, groups, wires

__all__ = [
    "GroupWire",
    "Mesh",
    "Pair",
    "groups",
    "wires",
]
