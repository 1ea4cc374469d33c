"""Several processes that replay one plan: torchrun starts them, torch.distributed carries what
crosses."""

from executor.distributed.launch import Inputs, follow, lead
from executor.distributed.world import World, world

__all__ = ["Inputs", "World", "follow", "lead", "world"]
