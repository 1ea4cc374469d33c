"""Slots in which the values of microbatches take turns on a device."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.shards import Value
from plans.schema import Role
from profiles.codec import align


@dataclass(eq=False)
class _Ring:
    """Slots of equal size. free: those not in use, with the turn of their last use; lives: of each
    the first turn and the last."""

    bytes: int
    role: Role
    free: deque[tuple[int, int]] = field(default_factory=deque)
    lives: list[tuple[int, int]] = field(default_factory=list)


class Rings:
    """All slots of all devices, which are made as they are needed; lives only while they are."""

    def __init__(self) -> None:
        self.rings: dict[tuple[int, str], _Ring] = {}
        self.held: dict[tuple[int, str, int], int] = {}  # slots, by what is in them

    def take(self, at: tuple[int, str, int], turn: int, size: int, role: Role) -> str:
        """A slot for an item of a microbatch on a device, from this turn on."""
        device, item, _ = at
        ring = self.rings.setdefault((device, item), _Ring(align(size), role))
        if ring.free and ring.free[0][1] < turn:
            slot, _ = ring.free.popleft()
        else:
            slot = len(ring.lives)
            ring.lives.append((turn, turn))
        self.held[at] = slot
        return f"{item}.{slot}"

    def find(self, device: int, item: str, microbatch: int) -> str | None:
        """The slot that has it, None where none does."""
        slot = self.held.get((device, item, microbatch))
        return None if slot is None else f"{item}.{slot}"

    def give(self, at: tuple[int, str, int], turn: int) -> None:
        """The slot is free after this turn."""
        device, item, _ = at
        ring, slot = self.rings[device, item], self.held.pop(at)
        ring.free.append((slot, turn))
        first, last = ring.lives[slot]
        ring.lives[slot] = first, max(last, turn)

    def values(self) -> Iterator[tuple[int, Value]]:
        """Every slot, on its device."""
        for (device, item), ring in self.rings.items():
            for slot, (first, last) in enumerate(ring.lives):
                name, space = f"{item}.{slot}", str(device)
                yield device, Value(name, ring.bytes, first, last, space=space, role=ring.role)
