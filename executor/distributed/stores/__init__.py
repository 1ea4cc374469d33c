"""The host stores of the nodes: memory that the processes of one share."""

from executor.distributed.stores.memory import PAGE, SharedMemory
from executor.distributed.stores.sharing import node_store

__all__ = ["PAGE", "SharedMemory", "node_store"]
