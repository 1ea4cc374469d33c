"""Which slot holds which streamed shard when: least recently used, known in advance.

Forward goes up and backward comes down, so the least recently used slot is also the one whose
shard is needed last, and the slot that fell free first: the best choice in both respects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Sweep = Literal["F", "B"]


@dataclass(frozen=True)
class Use:
    """A shard read from a slot during one sweep; `loads` when it must be prefetched first."""

    shard: int
    sweep: Sweep
    slot: int
    loads: bool


def assign(forward: Sequence[int], backward: Sequence[int], slots: int) -> list[Use]:
    """Uses of one round in order. At its start no slot holds anything of use, since every
    streamed shard was updated on the host; after its backward a shard's slot is stale."""
    if not slots:
        return []
    _, order = _round(forward, backward, list(range(slots)))
    # The order in which slots fell free at the end of a round is that of the next one's start.
    return _round(forward, backward, order)[0]


def _round(
    forward: Sequence[int], backward: Sequence[int], order: list[int]
) -> tuple[list[Use], list[int]]:
    free = list(order)
    held: dict[int, int] = {}
    uses = []
    sweeps: list[tuple[Sweep, int]] = [("F", s) for s in forward]
    sweeps += [("B", s) for s in backward]
    for sweep, shard in sweeps:
        loads = shard not in held
        slot = free[0] if loads else held[shard]
        free.remove(slot)
        free.append(slot)
        held = {s: at for s, at in held.items() if at != slot}
        if sweep == "F":
            held[shard] = slot
        uses.append(Use(shard, sweep, slot, loads))
    return uses, free
