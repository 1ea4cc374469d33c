"""bf16 parameters made from fp32 masters on their way to a device, piece by piece.

    masters (host store) ──cast──▶ slot of the ring (page-locked) ──copy──▶ parameters (device)

While one piece is copied, the next one is cast. CPU devices need no ring: they cast to the slab.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executor.devices.device import Cast, Mark, until
from plans.schema import Plan

PIECE = 4 << 20  # bytes of a slot
RING_BYTES = 3 * PIECE


class Ring:
    """Slots of host memory (uint8, RING_BYTES) in turn, each free when its copy is done."""

    def __init__(self, memory: Tensor) -> None:
        slots = torch.split(memory.view(torch.bfloat16), PIECE // 2)
        self._slots: deque[tuple[Tensor, Mark | None]] = deque((slot, None) for slot in slots)

    def send(
        self,
        casts: Sequence[Cast],
        copy_in: Callable[[Tensor, Tensor], None],
        mark: Callable[[], Mark],
    ) -> None:
        """Cast piece by piece and launch its copy; `mark` says how far the copies have come."""
        for target, master in casts:
            pieces = (torch.split(value, PIECE // 2) for value in (target, master))
            for to, piece in zip(*pieces, strict=True):
                slot, sent = self._slots.popleft()
                if sent is not None:
                    until(sent)
                made = slot[: len(piece)]
                made.copy_(piece)
                copy_in(to, made)
                self._slots.append((slot, mark()))


def ring_bytes(plan: Plan) -> int:
    """Host memory of the rings of the plan's devices."""
    casts = any(shard.cast for task in plan.tasks for shard in task.shards)
    return RING_BYTES * casts * sum(device.kind == "cuda" for device in plan.devices)
