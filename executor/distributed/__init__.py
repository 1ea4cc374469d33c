"""Several processes that replay one plan: torchrun starts them, torch.distributed carries what
crosses."""

from executor.distributed.launch import Met, connected, divisible, follow, goodbye, lead
from executor.distributed.meeting import AbsentError, Board, meet
from executor.distributed.world import World, agent, world

__all__ = [
    "AbsentError",
    "Board",
    "Met",
    "World",
    "agent",
    "connected",
    "divisible",
    "follow",
    "goodbye",
    "lead",
    "meet",
    "world",
]
