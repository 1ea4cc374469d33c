"""Where in a slab every value lies: at offsets, throughout its life.

Values get offsets, larger ones first, each where it can live longest (`places`) or, where none is
found so, in the lowest gap that is free throughout its life.
Lives are cyclic:

    bytes ^      +--------+                 lives wrap around the end of the round
          |  +---+  again +---+-----+
          |  | s1.param   | s0.grad |
          |  +------------+---------+
          +------------------------------> steps
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from planner.rounds.compiled import Numbers, compiled
from planner.rounds.places import in_turn, lowest, placed
from planner.shards import Value, buffer_name
from plans.schema import Buffer

_TRIES, _TRIES_BY_A_STEP = 24, 4  # orders in which places are looked for
_PAIRS = 400_000  # of values, that are looked at in all these orders together
_BY_MISSING = 8  # tries, each with less by what the one before took too much
_BY_EIGHTHS = 4  # more, each with an eighth less: a little less need not do
FAR = 1 << 40
"""More steps than there are, for a `Longer`."""


class Life(NamedTuple):
    """A value at its offset, alive from step `first` to step `last`."""

    value: Value
    first: int
    last: int
    offset: int


class Longer(NamedTuple):
    """A wish for a value's life: to begin so many steps earlier, but not before step `since`; and
    to end so many later, but not after step `until`.

    None takes a whole round, or begins before its copy may."""

    name: str
    earlier: int = 0
    since: int = -FAR
    later: int = 0
    until: int = FAR


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Values, and when they live in a round of so many steps, as arrays; in the order of names."""

    values: Sequence[Value]
    steps: int
    first: Numbers
    last: Numbers

    @classmethod
    def of(cls, values: Iterable[Value], steps: int) -> "Lifetimes":
        own = sorted(values, key=lambda value: value.name)
        first, last = ([value[at] for value in own] for at in (2, 3))
        return cls(own, steps, np.array(first, np.int64), np.array(last, np.int64))

    @property
    def ends(self) -> tuple[Numbers, Numbers]:
        return self.first, self.last

    def lost(self, longest: "Lifetimes") -> int:
        """The sum of the squares of the steps by which they are shorter than the longest."""
        early = np.maximum(self.first - longest.first, 0)
        late = np.maximum(longest.last - self.last, 0)
        return int((early**2 + late**2).sum())

    @cached_property
    def size(self) -> Numbers:
        return np.array([value.bytes for value in self.values], np.int64)

    @cached_property
    def earliest(self) -> Numbers:
        """Steps before which their copies cannot come."""
        into = [value.into for value in self.values]
        return np.array([one.earliest if one else -FAR for one in into], np.int64)

    @cached_property
    def alive(self) -> Numbers:
        """Bytes alive at every step."""
        return np.array(bytes_alive(self.values, self.steps), np.int64)

    def longer(self, wanted: Numbers, limit: int) -> "Lifetimes":
        """The lives stretched, one wish after the other, while no step has more than so many
        bytes."""
        first, last = self.first.copy(), self.last.copy()
        _stretch(first, last, self.size, self.earliest, self.alive.copy(), wanted, limit)
        return Lifetimes(self.values, self.steps, first, last)

    def wished(self, every: Iterable[Longer]) -> Numbers:
        """Wishes as rows, with the positions of their values."""
        at = {value.name: place for place, value in enumerate(self.values)}
        rows = [(at[one.name], *one[1:]) for one in every]
        return np.array(rows, np.int64).reshape(len(rows), 5)


@compiled
def _stretch(
    first: Numbers,
    last: Numbers,
    size: Numbers,
    earliest: Numbers,
    alive: Numbers,
    wanted: Numbers,
    limit: int,
) -> None:
    """Lives stretched in place, with the bytes alive at every step."""
    steps = len(alive)
    for row in range(len(wanted)):
        at, earlier, since, later, until = wanted[row]
        low = max(first[at] - earlier, since, earliest[at], last[at] + 2 - steps)
        low = min(low, first[at])
        high = max(min(last[at] + later, until, low + steps - 2), last[at])
        while first[at] > low and alive[(first[at] - 1) % steps] + size[at] <= limit:
            first[at] -= 1
            alive[first[at] % steps] += size[at]
        while last[at] < high and alive[(last[at] + 1) % steps] + size[at] <= limit:
            last[at] += 1
            alive[last[at] % steps] += size[at]


class Slab:
    """Values at their offsets, ascending, in a round of so many steps."""

    def __init__(self, lives: Lifetimes, offsets: Numbers | None = None) -> None:
        """By default every value in turn as low as may be."""
        self.lives, self.steps = lives, lives.steps
        self._order = in_turn(lives.first, lives.last, lives.size, lives.steps)
        if offsets is None:
            offsets = lowest(lives.first, lives.last, lives.size, self._order, lives.steps)
        self._offsets = offsets

    @property
    def bytes(self) -> int:
        """Bytes up to the last end."""
        return int((self._offsets + self.lives.size).max(initial=0))

    @cached_property
    def placed(self) -> list[Life]:
        order = self._order[np.argsort(self._offsets[self._order], kind="stable")].tolist()
        first, last = self.lives.first.tolist(), self.lives.last.tolist()
        offsets, values = self._offsets.tolist(), self.lives.values
        return [Life(values[at], first[at], last[at], offsets[at]) for at in order]

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(b for life in self.placed for b in buffers_of(life.value, life.offset))

    @property
    def before(self) -> dict[str, list[str]]:
        """For a buffer, those whose bytes it takes over."""
        return _before(self.placed, self.steps)


def stretched(
    values: Iterable[Value], steps: int, room: int, wishes: Callable[[], Iterable[Longer]]
) -> Slab:
    """Values in a slab of `room` bytes, or in the smallest found when that is more.

    Every value has its least life, which is stretched as wished in one of two ways, the one that
    loses less of it: as far as others leave it bytes (`placed`), where that can be by a step in any
    case, or all lives while there is room, and into less where gaps between values make the slab
    too large.
    """
    lives = Lifetimes.of(values, steps)
    plain = Slab(lives)
    if plain.bytes >= room:  # also where places could be found: a budget that is named is the least
        return plain
    wanted = lives.wished(wishes())
    # Who begins as early as may be does so wherever its bytes are free.
    bounded = wanted[(wanted[:, 1] < FAR) | (wanted[:, 2] > -FAR)]
    longest = lives.longer(bounded, room)
    found = [*_among_others(lives, longest, bounded, room), *_evenly(lives, wanted, plain, room)]
    return min(found, key=lambda slab: slab.lives.lost(longest), default=plain)


def _among_others(
    lives: Lifetimes, longest: Lifetimes, wanted: Numbers, room: int
) -> Iterator[Slab]:
    """Values where their lives are as near the longest as may be."""
    by_a_step = lives.longer(wanted[np.maximum(wanted[:, 1], wanted[:, 3]) == 1], room)
    able = 1 + _PAIRS // max(1, len(lives.size)) ** 2
    for least, most in ((by_a_step, _TRIES_BY_A_STEP), (lives, _TRIES)):
        found = placed(least.ends, longest.ends, lives.size, lives.steps, room, min(able, most))
        if found:
            first, last, offsets = found
            yield Slab(Lifetimes(lives.values, lives.steps, first, last), offsets)
            return


def _evenly(lives: Lifetimes, wanted: Numbers, plain: Slab, room: int) -> Iterator[Slab]:
    """Lives stretched while no step has too many bytes."""
    limit = room
    for tried in range(_BY_MISSING + _BY_EIGHTHS):
        slab = Slab(lives.longer(wanted, limit))
        if slab.bytes <= room:
            yield slab
            return
        if tried < _BY_MISSING - 1:
            limit -= slab.bytes - room
        else:
            limit = min(limit, plain.bytes) * 7 // 8


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
    return [Buffer(name, value.space, at, size) for name, at, size in _parts(value, offset)]


def _parts(value: Value, offset: int) -> list[tuple[str, int, int]]:
    """Names, offsets and bytes of the same."""
    name, size = buffer_name(value.space, value.name), value.bytes // value.parts
    if value.parts == 1:
        return [(name, offset, size)]
    return [(f"{name}.{m}", offset + m * size, size) for m in range(value.parts)]


def _before(lives: Sequence[Life], steps: int) -> dict[str, list[str]]:
    """For every buffer those whose bytes it takes over: the last there before it.

    Bytes get a new owner when a value begins to live; the second round knows the owners of the
    first. Who had the bytes still earlier was waited for by those.
    """
    moving = [life for life in lives if life.last - life.first + 1 < steps]
    moving.sort(key=lambda life: life.first % steps)
    buffers = [part for life in moving for part in _parts(life.value, life.offset)]
    low = np.array([offset for _, offset, _ in buffers], np.int64)
    size = np.array([size for _, _, size in buffers], np.int64)
    begins, owners = (column.tolist() for column in _owners(low, low + size))
    names = [name for name, _, _ in buffers]
    return {
        name: [names[owner] for owner in owners[begins[at] : begins[at + 1]]]
        for at, name in enumerate(names)
    }


@compiled
def _owners(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """For every buffer, which others had its bytes last when they are used in this order, round
    after round (`flat`)."""
    count = len(low)
    begins, found = np.zeros(count + 1, np.int64), [0 for _ in range(0)]
    edges, owners = np.zeros(2 * count + 2, np.int64), np.full(2 * count + 2, -1, np.int64)
    length = 1  # of edges, and of who has the bytes from each on
    for run in range(2 * count):
        at, left = run % count, 0
        while left + 1 < length and edges[left + 1] <= low[at]:
            left += 1
        right = left
        while right < length and edges[right] < high[at]:
            owner, known = owners[right], run < count or owners[right] == -1 or owners[right] == at
            for place in range(begins[at], len(found)):
                known = known or found[place] == owner
            if not known:
                found.append(owner)
            right += 1
        begins[at + 1] = len(found)
        begin = left + (edges[left] < low[at])  # where the buffer's own edge is
        keeps = right == length or edges[right] > high[at]
        behind, end = owners[right - 1], begin + 1 + keeps
        _moved(edges, right, length, end - right)
        _moved(owners, right, length, end - right)
        length += end - right
        edges[begin], owners[begin] = low[at], at
        if keeps:
            edges[begin + 1], owners[begin + 1] = high[at], behind
    return begins, np.array(found, np.int64)


@compiled
def _moved(column: Numbers, first: int, end: int, by: int) -> None:
    """Numbers from the first to the end moved by so many places, in place."""
    for place in range(end - first):
        at = end - 1 - place if by > 0 else first + place
        column[at + by] = column[at]
