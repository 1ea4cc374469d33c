"""How far ahead every load runs, and how long what leaves may stay.

Every value has its least life, which is stretched while there is room: by a step first, for all
that move; then loads since the link must begin to bring them, and what leaves until the link has
taken it (`copy_windows`); then loads as early as may be, those needed sooner before others. Where
gaps between values make the slab too large, values are placed with their least lives, which are
then stretched where their bytes, or other ones, are free.
"""

from collections.abc import Iterable

from planner.rounds.slab import Life, Slab, alive
from planner.shards import Clock, Links, Slots

_TRIES = 2  # with less memory, after gaps between values made the slab too large


def lay_out(slots: Slots, links: Links, room: int) -> Slab:
    """A strategy's values in a slab of `room` bytes, or in the smallest found when that is more.

    With room to spare loads run ahead, and what leaves stays until it is gone.
    """
    values, steps = [value for value in slots.values() if value.bytes], slots.count
    if max(alive(map(Life.of, values), steps), default=0) >= room:
        return Slab(map(Life.of, values), steps, room)
    clock, limit = Clock(slots, links, values), room
    for _ in range(_TRIES):
        ledger = _Ledger(map(Life.of, values), steps, limit)
        _stretch(ledger, clock)
        slab = Slab(ledger.lives.values(), steps, room)
        if slab.bytes <= room:
            return slab
        limit -= slab.bytes - room
    slab = Slab(map(Life.of, values), steps, room)
    if slab.bytes < room:
        _stretch(slab, clock)
    return slab


def _stretch(room: "_Ledger | Slab", clock: Clock) -> None:
    """Longer lives for what moves."""
    leave = [room.lives[name] for name in clock.leaving]
    come = [room.lives[name] for name in clock.coming]
    for life in leave:
        room.live(life, life.first, life.last + 1)
    for life in come:
        room.live(life, life.first - 1, life.last)
    gone, since = clock.lives
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
        self.alive = alive(self.lives.values(), steps)

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
