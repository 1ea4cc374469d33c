"""The host stores of the nodes: memory that the processes of one share, and what node 0 fetches."""

from executor.distributed.stores.carrier import Carrier, Job, carrier
from executor.distributed.stores.memory import SharedMemory
from executor.distributed.stores.sharing import node_store

__all__ = ["Carrier", "Job", "SharedMemory", "carrier", "node_store"]
