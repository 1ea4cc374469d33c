"""The host stores of the nodes: memory that the processes of one share, and what goes from store to
store."""

from executor.distributed.stores.carrier import Carrier, Job, carrier
from executor.distributed.stores.copies import Copies
from executor.distributed.stores.memory import SharedMemory
from executor.distributed.stores.sharing import node_store

__all__ = ["Carrier", "Copies", "Job", "SharedMemory", "carrier", "node_store"]
