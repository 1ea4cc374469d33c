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

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.choice import Choice, Value
from plans.schema import Buffer

_TRIES = 3  # with less memory for loads ahead, after gaps between values made the slab too large


@dataclass(frozen=True)
class Slab:
    """The buffers of a round, what their ends span, and the most bytes ever alive at once."""

    buffers: tuple[Buffer, ...]
    bytes: int
    live_bytes: int
    before: dict[str, list[str]]  # for a buffer, those whose bytes it takes over


def lay_out(choice: Choice, room: int) -> Slab:
    """The choice's values in a slab of `room` bytes, or in the smallest found when that is more.

    With room to spare loads run further ahead than `choice.ahead`.
    """
    values = [value for value in choice.values() if value.bytes]
    steps = choice.steps
    if choice.ahead and max(occupied(values, steps)) < room:
        limit = room
        for _ in range(_TRIES):
            placed = _place(_extend(values, steps, limit), steps)
            over = _end(placed) - room
            if over <= 0:
                return _slab(placed, steps)
            limit -= over
    return _slab(_place(values, steps), steps)


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


class _Placed(NamedTuple):
    """A value at its offset; mask: its steps as bits."""

    offset: int
    end: int
    mask: int
    value: Value


def _place(values: Sequence[Value], steps: int) -> list[_Placed]:
    """Offsets for the values: those that live all round at the bottom, the rest by size."""
    full = (1 << steps) - 1
    masked = [(_mask(value, steps), value) for value in values]
    always = [_Placed(0, v.bytes, mask, v) for mask, v in masked if mask == full]
    rest = [(mask, v) for mask, v in masked if mask != full]
    rest.sort(key=lambda item: (-item[1].bytes, item[1].first, item[1].name))
    bottom, low = 0, []
    for item in always:
        low.append(item._replace(offset=bottom, end=bottom + item.end))
        bottom += item.end
    placed: list[_Placed] = []  # ascending by offset
    for mask, value in rest:
        offset = bottom
        for there in placed:
            if there.mask & mask:
                if there.offset - offset >= value.bytes:
                    break
                if there.end > offset:
                    offset = there.end
        insort(placed, _Placed(offset, offset + value.bytes, mask, value), key=_offset)
    return low + placed


def _offset(placed: _Placed) -> int:
    return placed.offset


def _end(placed: Sequence[_Placed]) -> int:
    return max((item.end for item in placed), default=0)


def _slab(placed: Sequence[_Placed], steps: int) -> Slab:
    buffers = [buffer for item in placed for buffer in _parts(item.value, item.offset)]
    live = max(occupied([item.value for item in placed], steps), default=0)
    return Slab(tuple(buffers), _end(placed), live, _before(placed, steps))


def _parts(value: Value, offset: int) -> list[Buffer]:
    size = value.bytes // value.parts
    if value.parts == 1:
        return [Buffer(f"0/{value.name}", "0", offset, size)]
    return [Buffer(f"0/{value.name}.{m}", "0", offset + m * size, size) for m in range(value.parts)]


def _before(placed: Sequence[_Placed], steps: int) -> dict[str, list[str]]:
    """For every buffer those whose bytes it takes over: the last there before it.

    Who had the bytes still earlier was waited for by those.
    """
    full = (1 << steps) - 1
    moving = [item for item in placed if item.mask != full]
    moving.sort(key=_offset)
    found: dict[str, list[str]] = {}
    for item in moving:
        others = []
        for other in moving:
            if other.offset >= item.end:
                break
            if other.end > item.offset and other is not item:
                others.append(other)
        others.sort(key=lambda other: (item.value.first - other.value.last - 1) % steps)
        left = [(item.offset, item.end)]
        for other in others:
            if not left:
                break
            rest = [cut for low, high in left for cut in _without(low, high, other)]
            if rest != left:
                left = rest
                _pair(item, other, found)
    return found


def _without(low: int, high: int, other: _Placed) -> Iterator[tuple[int, int]]:
    """What is left of a range."""
    if low < min(high, other.offset):
        yield low, min(high, other.offset)
    if max(low, other.end) < high:
        yield max(low, other.end), high


def _pair(item: _Placed, other: _Placed, found: dict[str, list[str]]) -> None:
    for mine in _parts(item.value, item.offset):
        for theirs in _parts(other.value, other.offset):
            low = max(mine.offset, theirs.offset)
            if low < min(mine.offset + mine.bytes, theirs.offset + theirs.bytes):
                found.setdefault(mine.name, []).append(theirs.name)
