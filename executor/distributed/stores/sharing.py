"""The host store of a node, made by its first process and mapped by the others."""

from executor.distributed.links import Mesh
from executor.distributed.messages import Mapped, Store
from executor.distributed.stores.memory import SharedMemory
from executor.distributed.world import World


def node_store(world: World, mesh: Mesh, size: int) -> SharedMemory:
    """The store of this process' node, once all of its processes have it."""
    first = world.first(world.node)
    if world.rank != first:
        memory = SharedMemory(size, mesh.expect(first, Store).path)
        mesh.send(first, Mapped())
    else:
        memory = SharedMemory(size)
        for mate in world.mates[1:]:
            mesh.send(mate, Store(memory.path))
        for mate in world.mates[1:]:
            mesh.expect(mate, Mapped)
    memory.release()
    return memory
