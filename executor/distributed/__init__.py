"""Several processes that replay one plan: torchrun starts them, torch.distributed carries what
crosses."""

from executor.distributed.launch import Met, connected, divisible, follow, goodbye, lead
from executor.distributed.meeting import AbsentError, Board, meet
from executor.distributed.world import World, world

__all__ = [
    "AbsentError",
    "Board",
    "Met",
    "World",
    "connected",
    "divisible",
    "follow",
    "goodbye",
    "lead",
    "meet",
    "world",
]
