"""Where in a slab every value lies: at offsets, throughout its life.

Values get offsets, larger ones first, each in the lowest gap that is free throughout its life.
Lives are cyclic:

    bytes ^      +--------+                 lives wrap around the end of the round
          |  +---+  again +---+-----+
          |  | s1.param   | s0.grad |
          |  +------------+---------+
          +------------------------------> steps
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, product

from planner.shards import Value, placed
from plans.schema import Buffer


def _mask(first: int, last: int, steps: int) -> int:
    """Steps from first to last as bits, wrapped around."""
    if last - first + 1 >= steps:
        return (1 << steps) - 1
    bits = ((1 << (last - first + 1)) - 1) << (first % steps)
    return (bits | bits >> steps) & ((1 << steps) - 1)


@dataclass(slots=True, eq=False)
class Life:
    """A value alive from `first` to `last`; mask: these steps as bits, while it is at its
    offset."""

    value: Value
    first: int
    last: int
    offset: int = 0
    end: int = 0
    mask: int = 0

    @classmethod
    def of(cls, value: Value) -> "Life":
        return cls(value, value.first, value.last)

    def within(self, first: int, last: int, steps: int) -> tuple[int, int]:
        """So long a life, as far as it may be: none is shortened, none takes a whole round."""
        into, earliest = self.value.into, self.last + 2 - steps
        if into and into.earliest > earliest:
            earliest = into.earliest
        if first < earliest:
            first = earliest
        if first > self.first:
            first = self.first
        latest = first + steps - 2
        if last > latest:
            last = latest
        return first, last if last > self.last else self.last


class Slab:
    """Values at their offsets, ascending, in a round of so many steps."""

    def __init__(self, lives: Iterable[Life], steps: int, room: int) -> None:
        self.lives = {life.value.name: life for life in lives}
        self.steps, self.room = steps, room
        self.placed: list[Life] = []
        full = (1 << steps) - 1
        for life in self.lives.values():
            life.mask = _mask(life.first, life.last, steps)
        # Those that live all round at the bottom, the rest by size.
        ordered = sorted(
            self.lives.values(),
            key=lambda life: (life.mask != full, -life.value.bytes, life.first, life.value.name),
        )
        bottom, spans = 0, list[Span]()
        for life in ordered:
            size, mask = life.value.bytes, life.mask
            if mask == full:
                life.offset = bottom
                bottom += size
            else:
                life.offset = _gap(spans, bottom, mask, size)
                insort(spans, (life.offset, life.offset + size, mask))
            life.end = life.offset + size
        self.placed = sorted(ordered, key=_offset)

    @property
    def bytes(self) -> int:
        """Bytes up to the last end."""
        return max((life.end for life in self.placed), default=0)

    @property
    def live_bytes(self) -> int:
        """The most bytes ever alive at once."""
        return max(alive(self.placed, self.steps), default=0)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(b for life in self.placed for b in buffers_of(life.value, life.offset))

    @property
    def before(self) -> dict[str, list[str]]:
        """For a buffer, those whose bytes it takes over."""
        return _before(self.placed, self.steps)

    def live(self, life: Life, first: int, last: int) -> None:
        """Alive from `first` to `last` if that can be, here or elsewhere; or as long as can be
        here."""
        first, last = life.within(first, last, self.steps)
        if first == life.first and last == life.last:
            return
        blocked, low, high = 0, life.offset, life.end
        for other in self.placed:
            if other.offset >= high:
                break
            if other.end > low and other is not life:
                blocked |= other.mask
        wanted = _mask(first, last, self.steps)
        if wanted & blocked and not self._moved(life, wanted):
            first, last = self._free(life, blocked, first, last)
        life.first, life.last = first, last
        life.mask = _mask(first, last, self.steps)

    def _moved(self, life: Life, mask: int) -> bool:
        """Place the value where bytes are free at all these steps; False when there are none."""
        spans = ((o.offset, o.end, o.mask) for o in self.placed if o is not life)
        offset, size = _gap(spans, 0, mask, life.value.bytes), life.value.bytes
        if offset + size > self.room:
            return False
        self.placed.remove(life)
        life.offset, life.end = offset, offset + size
        insort(self.placed, life, key=_offset)
        return True

    def _free(self, life: Life, blocked: int, first: int, last: int) -> tuple[int, int]:
        """The longest life around the present one, within these steps, that nothing blocks."""
        begin, end = life.first, life.last
        while begin > first and not blocked >> ((begin - 1) % self.steps) & 1:
            begin -= 1
        while end < last and not blocked >> ((end + 1) % self.steps) & 1:
            end += 1
        return begin, end


def _offset(life: Life) -> int:
    return life.offset


Span = tuple[int, int, int]
"""Bytes from an offset to an end that are taken at the steps of a mask."""


def _gap(spans: Iterable[Span], bottom: int, mask: int, size: int) -> int:
    """The lowest offset, from the bottom on, with so many bytes free at all these steps."""
    offset = bottom
    for start, end, taken in spans:
        if taken & mask:
            if start - offset >= size:
                break
            if end > offset:
                offset = end
    return offset


def alive(lives: Iterable[Life], steps: int) -> list[int]:
    """Bytes of these values alive at every step."""
    return bytes_alive(((life.value.bytes, life.first, life.last) for life in lives), steps)


def bytes_alive(lives: Iterable[tuple[int, int, int]], steps: int) -> list[int]:
    """Bytes alive at every step, of so many from a first to a last step each."""
    change = [0] * (steps + 1)
    base = 0
    for size, first, last in lives:
        begin, end, whole = first % steps, last % steps + 1, last - first + 1 >= steps
        if whole or end <= begin:
            base += size
        if not whole:
            change[begin] += size
            change[end] -= size
    return [base + alive for alive in accumulate(change[:steps])]


def buffers_of(value: Value, offset: int) -> list[Buffer]:
    """The value's buffers, one after the other from there on."""
    size, space = value.bytes // value.parts, value.space
    name = placed(space, value.name)
    if value.parts == 1:
        return [Buffer(name, space, offset, size)]
    return [Buffer(f"{name}.{m}", space, offset + m * size, size) for m in range(value.parts)]


def _before(lives: Sequence[Life], steps: int) -> dict[str, list[str]]:
    """For every buffer those whose bytes it takes over: the last there before it.

    Who had the bytes still earlier was waited for by those.
    """
    full = (1 << steps) - 1
    moving = [item for item in lives if item.mask != full]
    buffers = {item.value.name: buffers_of(item.value, item.offset) for item in moving}
    found: dict[str, list[str]] = {}
    below: list[Life] = []  # that begin at lower bytes and may reach this item's
    for index, item in enumerate(moving, 1):
        first, start, end = item.first, item.offset, item.end
        others = [other for other in below if other.end > start]
        below = [*others, item]
        for other in islice(moving, index, None):
            if other.offset >= end:
                break
            others.append(other)
        others.sort(key=lambda other: (first - other.last - 1) % steps)
        left = [(start, end)]
        for other in others:
            rest = _without(left, other)
            if rest != left:
                left = rest
                for mine, theirs in product(buffers[item.value.name], buffers[other.value.name]):
                    if _overlap(mine, theirs):
                        found.setdefault(mine.name, []).append(theirs.name)
            if not left:
                break
    return found


def _without(ranges: Sequence[tuple[int, int]], other: Life) -> list[tuple[int, int]]:
    """The ranges less the bytes of another value."""
    start, end, left = other.offset, other.end, list[tuple[int, int]]()
    for low, high in ranges:
        if start >= high or end <= low:
            left.append((low, high))
            continue
        if low < start:
            left.append((low, start))
        if end < high:
            left.append((end, high))
    return left


def _overlap(one: Buffer, other: Buffer) -> bool:
    """True if the buffers share bytes."""
    return one.offset < other.offset + other.bytes and other.offset < one.offset + one.bytes
