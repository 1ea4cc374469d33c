"""How far ahead every load may run, and where in the slab every value lies.

Loads take the memory that is left, in the order of their need: each begins as early as those
before it began and as the ledger allows. What is needed soonest gets the room first, so nothing
is evicted for something needed later. Then values get offsets, larger ones first, each in the
lowest gap that is free throughout its life.

    bytes ^      +--------+                 a ledger over the steps of a round; lives wrap around
          |  +---+  again +---+-----+
          |  | s1.param   | s0.grad |
          |  +------------+---------+
          +------------------------------> steps
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.choice import Choice, Value
from plans.schema import Buffer
from profiles.codec import align

_TRIES = 3  # with less memory for loads ahead, after gaps between values made the slab too large


@dataclass(frozen=True)
class Slab:
    """The buffers of a round, what their ends span, and the most bytes ever alive at once."""

    buffers: tuple[Buffer, ...]
    bytes: int
    live_bytes: int
    overlaps: dict[str, list[str]]  # buffers that share bytes at different times

    @property
    def waste_bytes(self) -> int:
        """What the gaps between values cost."""
        return self.bytes - self.live_bytes


def lay_out(choice: Choice, room: int) -> Slab:
    """The choice's values in a slab of `room` bytes, or in the smallest found when that is more.

    With room to spare loads run further ahead than `choice.ahead`.
    """
    values = [value for value in choice.values() if value.bytes]
    least = _place(values, choice.steps)
    if not choice.ahead or least.bytes >= room:
        return least
    limit = room
    for _ in range(_TRIES):
        slab = _place(_extend(values, choice.steps, limit), choice.steps)
        if slab.bytes <= room:
            return slab
        limit -= slab.bytes - room
    return least


def _mask(value: Value, steps: int) -> int:
    """The value's steps as bits, wrapped around."""
    if value.last - value.first + 1 >= steps:
        return (1 << steps) - 1
    bits = ((1 << (value.last - value.first + 1)) - 1) << (value.first % steps)
    return (bits | bits >> steps) & ((1 << steps) - 1)


def occupied(values: Sequence[Value], steps: int) -> list[int]:
    """Bytes alive at every step."""
    change = [0] * (steps + 1)
    base = 0
    for value in values:
        if value.last - value.first + 1 >= steps:
            base += value.bytes
            continue
        first, end = value.first % steps, value.last % steps + 1
        change[first] += value.bytes
        change[end] -= value.bytes
        if end <= first:
            base += value.bytes
    live, out = base, []
    for step in range(steps):
        live += change[step]
        out.append(live)
    return out


def _extend(values: Sequence[Value], steps: int, limit: int) -> list[Value]:
    """The values, their loads begun as early as `limit` bytes at every step allow."""
    ledger = occupied(values, steps)
    loads = sorted((v for v in values if v.load), key=lambda v: (v.first, v.last, v.name))
    made: dict[str, Value] = {}
    before = loads[-1].first - steps if loads else 0
    for load in loads:
        first = load.first
        earliest = max(load.earliest, before, load.last + 1 - steps)
        while first > earliest and ledger[(first - 1) % steps] + load.bytes <= limit:
            first -= 1
            ledger[first % steps] += load.bytes
        made[load.name] = replace(load, first=first)
        before = first
    return [made.get(value.name, value) for value in values]


def _place(values: Sequence[Value], steps: int) -> Slab:
    """Offsets for the values: those that live all round at the bottom, the rest by size."""
    full = (1 << steps) - 1
    masks = {value.name: _mask(value, steps) for value in values}
    sized = [(align(v.bytes // v.parts) * v.parts, v) for v in values]
    order = sorted(sized, key=lambda s: (masks[s[1].name] != full, -s[0], s[1].first, s[1].name))
    bottom = 0
    buffers: list[Buffer] = []
    placed: list[tuple[int, int, int, Value]] = []  # offset, end, mask, value
    for size, value in order:
        mask = masks[value.name]
        if mask == full:
            offset = bottom
            bottom += size
        else:
            offset = bottom
            for low, high, other, _ in placed:
                if other & mask:
                    if low - offset >= size:
                        break
                    offset = max(offset, high)
            placed.append((offset, offset + size, mask, value))
            placed.sort(key=_by_offset)
        buffers += _parts(value, offset)
    slab = max((end for _, end, _, _ in placed), default=bottom)
    live = max(occupied(values, steps))
    return Slab(tuple(buffers), max(slab, bottom), live, _overlaps(placed))


def _by_offset(placed: tuple[int, int, int, Value]) -> tuple[int, int]:
    return placed[:2]


def _parts(value: Value, offset: int) -> list[Buffer]:
    size = align(value.bytes // value.parts)
    if value.parts == 1:
        return [Buffer(f"0/{value.name}", "0", offset, size)]
    return [
        Buffer(f"0/{value.name}.{m}", "0", offset + m * size, size) for m in range(value.parts)
    ]


def _overlaps(placed: Sequence[tuple[int, int, int, Value]]) -> dict[str, list[str]]:
    """For every buffer those that share bytes with it. `placed` ascends by offset."""
    pieces: list[tuple[int, int, str]] = []
    for offset, _, _, value in placed:
        pieces += [(b.offset, b.offset + b.bytes, b.name) for b in _parts(value, offset)]
    pieces.sort()
    found: dict[str, list[str]] = {name: [] for _, _, name in pieces}
    active: list[tuple[int, int, str]] = []
    for piece in pieces:
        active = [other for other in active if other[1] > piece[0]]
        for other in active:
            found[other[2]].append(piece[2])
            found[piece[2]].append(other[2])
        active.append(piece)
    return found
