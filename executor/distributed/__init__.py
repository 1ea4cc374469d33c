"""Several processes that replay one plan: torchrun starts them, torch.distributed carries what
crosses."""

from executor.distributed.launch import Met, connected, divisible, follow, goodbye, lead
from executor.distributed.links import interface_of, own_address
from executor.distributed.world import World, agent, world

__all__ = [
    "Met",
    "World",
    "agent",
    "connected",
    "divisible",
    "follow",
    "goodbye",
    "interface_of",
    "lead",
    "own_address",
    "world",
]
