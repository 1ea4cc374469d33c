"""How far ahead every load runs, how long what leaves may stay, and where in the slab every value
lies.

Every value has its least life, which is stretched while there is room: by a step first, for all
that move; then loads since the link must begin to bring them, and what leaves until the link has
taken it (`clock`); then loads as early as may be, those needed sooner before others. Values get
offsets, larger ones first, each in the lowest gap that is free throughout its life. Where gaps
make that too large, values are placed with their least lives, which are then stretched where
their bytes, or other ones, are free.

    bytes ^      +--------+                 lives wrap around the end of the round
          |  +---+  again +---+-----+
          |  | s1.param   | s0.grad |
          |  +------------+---------+
          +------------------------------> steps
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import accumulate, islice, takewhile

from planner.shards import Clock, Links, Slots, Value, placed
from plans.schema import Buffer

_TRIES = 2  # with less memory, after gaps between values made the slab too large


@dataclass(frozen=True)
class Slab:
    """The buffers of a round, what their ends span, and the most bytes ever alive at once."""

    buffers: tuple[Buffer, ...]
    bytes: int
    live_bytes: int
    before: dict[str, list[str]]  # for a buffer, those whose bytes it takes over


def lay_out(slots: Slots, links: Links, room: int) -> Slab:
    """A strategy's values in a slab of `room` bytes, or in the smallest found when that is more.

    With room to spare loads run ahead, and what leaves stays until it is gone.
    """
    values, steps = [value for value in slots.values() if value.bytes], slots.count
    least = Layout([Life.of(value) for value in values], steps, room)
    if least.end >= room:
        return least.slab
    clock, limit = Clock(slots, links, values), room
    for _ in range(_TRIES):
        ledger = _Ledger([Life.of(value) for value in values], steps, limit)
        _stretch(ledger, clock)
        layout = Layout(ledger.lives.values(), steps, room)
        if layout.end <= room:
            return layout.slab
        limit -= layout.end - room
    _stretch(least, clock)
    return least.slab


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


def _stretch(room: "_Ledger | Layout", clock: Clock) -> None:
    """Longer lives for what moves."""
    leave = [room.lives[name] for name in clock.leaving]
    come = [room.lives[name] for name in clock.coming]
    for life in leave:
        room.live(life, life.first, life.last + 1)
    for life in come:
        room.live(life, life.first - 1, life.last)
    gone, since = clock.lives()
    for life in come:
        room.live(life, since[life.value.name], life.last)
    for life in leave:
        room.live(life, life.first, gone[life.value.name])
    for life in come:
        room.live(life, life.last - room.steps, life.last)


class _Ledger:
    """Bytes at every step, wherever they are."""

    def __init__(self, lives: Iterable[Life], steps: int, limit: int) -> None:
        self.lives = {life.value.name: life for life in lives}
        self.steps, self.limit = steps, limit
        spans = ((life.value.bytes, life.first, life.last) for life in self.lives.values())
        self.alive = bytes_alive(spans, steps)

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


class Layout:
    """The slab while values are put into it; ascending by offset."""

    def __init__(self, lives: Iterable[Life], steps: int, room: int) -> None:
        self.lives = {life.value.name: life for life in lives}
        self.steps, self.room = steps, room
        self.placed: list[Life] = []
        full = (1 << steps) - 1
        for life in self.lives.values():
            life.mask = _mask(life.first, life.last, steps)
        # Those that live all round at the bottom, the rest by size.
        for life in sorted(
            self.lives.values(),
            key=lambda life: (life.mask != full, -life.value.bytes, life.first, life.value.name),
        ):
            self._put(life, self._gap(life.mask, life.value.bytes))

    @property
    def end(self) -> int:
        return max((life.end for life in self.placed), default=0)

    @property
    def slab(self) -> Slab:
        """The layout as it is now."""
        spans = ((life.value.bytes, life.first, life.last) for life in self.placed)
        alive = max(bytes_alive(spans, self.steps), default=0)
        buffers = [b for life in self.placed for b in buffers_of(life.value, life.offset)]
        return Slab(tuple(buffers), self.end, alive, _before(self.placed, self.steps))

    def _put(self, life: Life, offset: int) -> None:
        life.offset, life.end = offset, offset + life.value.bytes
        insort(self.placed, life, key=_offset)

    def _gap(self, mask: int, size: int) -> int:
        """The lowest offset that is free at all these steps."""
        offset = 0
        for there in self.placed:
            if there.mask & mask:
                if there.offset - offset >= size:
                    break
                if there.end > offset:
                    offset = there.end
        return offset

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
        """Whether other bytes are free at all these steps; the value is there then."""
        self.placed.remove(life)
        offset = self._gap(mask, life.value.bytes)
        found = offset + life.value.bytes <= self.room
        self._put(life, offset if found else life.offset)
        return found

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


def _before(placed: Sequence[Life], steps: int) -> dict[str, list[str]]:
    """For every buffer those whose bytes it takes over: the last there before it.

    Who had the bytes still earlier was waited for by those.
    """
    full = (1 << steps) - 1
    moving = [item for item in placed if item.mask != full]
    moving.sort(key=_offset)
    found: dict[str, list[str]] = {}
    below: list[Life] = []  # that begin at lower bytes and may reach this item's
    for index, item in enumerate(moving):
        first, start, end = item.first, item.offset, item.end
        below = [other for other in below if other.end > start]
        above = takewhile(lambda other: other.offset < end, islice(moving, index + 1, None))  # noqa: B023
        others = [*below, *above]
        below.append(item)
        latest = [((first - o.last - 1) % steps, place) for place, o in enumerate(others)]
        heapify(latest)  # few of many are looked at
        left = [(start, end)]
        while left and latest:
            other = others[heappop(latest)[1]]
            rest = [cut for low, high in left for cut in _without(low, high, other)]
            if rest != left:
                left = rest
                _pair(item, other, found)
    return found


def _without(low: int, high: int, other: Life) -> Iterator[tuple[int, int]]:
    """What is left of a range."""
    if low < min(high, other.offset):
        yield low, min(high, other.offset)
    if max(low, other.end) < high:
        yield max(low, other.end), high


def _pair(item: Life, other: Life, found: dict[str, list[str]]) -> None:
    for mine in buffers_of(item.value, item.offset):
        for theirs in buffers_of(other.value, other.offset):
            low = max(mine.offset, theirs.offset)
            if low < min(mine.offset + mine.bytes, theirs.offset + theirs.bytes):
                found.setdefault(mine.name, []).append(theirs.name)
