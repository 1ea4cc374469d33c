"""Where in a slab every value lies: at offsets, throughout its life.

Values get offsets, larger ones first, each in the lowest gap that is free throughout its life.
Lives are cyclic:

    bytes ^      +--------+                 lives wrap around the end of the round
          |  +---+  again +---+-----+
          |  | s1.param   | s0.grad |
          |  +------------+---------+
          +------------------------------> steps
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from planner.shards import Value, buffer_name
from plans.schema import Buffer

_BY_MISSING = 8  # tries, each with less by what the one before took too much
_BY_EIGHTHS = 4  # more, each with an eighth less: a little less need not do
_DOUBT = 4  # tries after which it may be that the values fit in no way


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


class Ledger:
    """Bytes at every step, wherever they are, at most so many."""

    def __init__(self, values: Sequence[Value], steps: int, limit: int) -> None:
        self.lives = {value.name: Life.of(value) for value in values}
        self.steps, self.limit = steps, limit
        self.alive = bytes_alive(values, steps)

    def live(self, life: Life, first: int, last: int) -> None:
        """Alive from `first` to `last`, or as long as the limit allows."""
        first, last = life.within(first, last, self.steps)
        size, most = life.value.bytes, self.limit - life.value.bytes
        while life.first > first and self.alive[(life.first - 1) % self.steps] <= most:
            life.first -= 1
            self.alive[life.first % self.steps] += size
        while life.last < last and self.alive[(life.last + 1) % self.steps] <= most:
            life.last += 1
            self.alive[life.last % self.steps] += size


class Slab:
    """Values at their offsets, ascending, in a round of so many steps."""

    def __init__(self, lives: Iterable[Life], steps: int) -> None:
        self.placed, self.steps = list(lives), steps
        full = (1 << steps) - 1
        for life in self.placed:
            life.mask = _mask(life.first, life.last, steps)
        # Those that live all round at the bottom, the rest by size.
        self.placed.sort(
            key=lambda life: (life.mask != full, -life.value.bytes, life.first, life.value.name)
        )
        bottom, spans = 0, list[Span]()
        for life in self.placed:
            size, mask = life.value.bytes, life.mask
            if mask == full:
                life.offset = bottom
                bottom += size
            else:
                life.offset = _gap(spans, bottom, mask, size)
                insort(spans, (life.offset, life.offset + size, mask))
        self.placed.sort(key=lambda life: life.offset)

    @property
    def bytes(self) -> int:
        """Bytes up to the last end."""
        return max((life.offset + life.value.bytes for life in self.placed), default=0)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(b for life in self.placed for b in buffers_of(life.value, life.offset))

    @property
    def before(self) -> dict[str, list[str]]:
        """For a buffer, those whose bytes it takes over."""
        return _before(self.placed, self.steps)


def stretched(
    values: Sequence[Value], steps: int, room: int, stretch: Callable[[Ledger], None]
) -> Slab:
    """Values in a slab of `room` bytes, or in the smallest found when that is more.

    Every value has its least life, which is stretched while there is room. Where gaps between
    values then make the slab too large, they are stretched into less.
    """
    least, limit = max(bytes_alive(values, steps), default=0), room
    plain: Slab | None = None
    for tried in range(_BY_MISSING + _BY_EIGHTHS if least < room else 0):
        if tried == _DOUBT:
            plain = Slab(map(Life.of, values), steps)
            if plain.bytes > room:
                return plain
        ledger = Ledger(values, steps, limit)
        stretch(ledger)
        slab = Slab(ledger.lives.values(), steps)
        if slab.bytes <= room:
            return slab
        if tried < _BY_MISSING - 1:
            limit -= slab.bytes - room
        else:
            limit = min(limit, least) * 7 // 8
    return plain or Slab(map(Life.of, values), steps)


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


def bytes_alive(values: Iterable[Value], steps: int) -> list[int]:
    """Bytes of these values alive at every step."""
    change = [0] * (steps + 1)
    base = 0
    for value in values:
        begin, end = value.first % steps, value.last % steps + 1
        whole = value.last - value.first + 1 >= steps
        if whole or end <= begin:
            base += value.bytes
        if not whole:
            change[begin] += value.bytes
            change[end] -= value.bytes
    return [base + alive for alive in accumulate(change[:steps])]


def buffers_of(value: Value, offset: int) -> list[Buffer]:
    """The value's buffers, one after the other from there on."""
    size, space = value.bytes // value.parts, value.space
    name = buffer_name(space, value.name)
    if value.parts == 1:
        return [Buffer(name, space, offset, size)]
    return [Buffer(f"{name}.{m}", space, offset + m * size, size) for m in range(value.parts)]


def _before(lives: Sequence[Life], steps: int) -> dict[str, list[str]]:
    """For every buffer those whose bytes it takes over: the last there before it.

    Bytes get a new owner when a value begins to live; the second round knows the owners of the
    first. Who had the bytes still earlier was waited for by those.
    """
    full, found = (1 << steps) - 1, dict[str, list[str]]()
    moving = [life for life in lives if life.mask != full]
    moving.sort(key=lambda life: life.first % steps)
    buffers = [buffer for life in moving for buffer in buffers_of(life.value, life.offset)]
    edges, owners = [0], [""]  # who has the bytes from each edge on
    for buffer in buffers * 2:
        name, start, end = buffer.name, buffer.offset, buffer.offset + buffer.bytes
        low, high = bisect_right(edges, start) - 1, bisect_left(edges, end)
        found[name] = [o for o in dict.fromkeys(owners[low:high]) if o not in ("", name)]
        left, right = edges[low] < start, high == len(edges) or edges[high] > end
        owners[low:high] = [*owners[low:high][:left], name, *owners[low:high][-1:] * right]
        edges[low:high] = [*edges[low:high][:left], start, *[end] * right]
    return found
