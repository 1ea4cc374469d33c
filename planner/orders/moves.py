"""Changes of a placement, drawn at random: shards that trade places, replicas that get more."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

DeviceRow = tuple[int, ...]
"""The device of every microbatch of a shard."""
DeviceRows = tuple[DeviceRow, ...]
"""The device of every microbatch, by shard."""
Change = dict[int, DeviceRow]
"""The shards that get new rows; empty where a draw has no sense."""


class State(NamedTuple):
    """A placement, what each device computes, the time of each device for a microbatch of each
    shard, and how many shards may be shared by two devices."""

    rows: DeviceRows
    loads: tuple[int, ...]
    times: tuple[tuple[int, ...], ...]
    replicas: int

    @property
    def shared(self) -> list[int]:
        """The shards on more than one device."""
        return [s for s, row in enumerate(self.rows) if row.count(row[0]) < len(row)]

    def lowest(self) -> list[int]:
        """The first shard of each device; 0 where there is none."""
        found: dict[int, int] = {}
        for s, row in enumerate(self.rows):
            for device in row:
                found.setdefault(device, s)
            if len(found) == len(self.loads):
                break
        return [found.get(device, 0) for device in range(len(self.loads))]

    def after(self, change: Change) -> "State":
        """The placement with some rows replaced."""
        rows, loads = list(self.rows), list(self.loads)
        for s, row in change.items():
            for device in rows[s]:
                loads[device] -= self.times[device][s]
            for device in row:
                loads[device] += self.times[device][s]
            rows[s] = row
        return self._replace(rows=tuple(rows), loads=tuple(loads))


def swap(state: State, rng: random.Random) -> Change:
    """Two shards trade places, near ones as often as any."""
    a = rng.randrange(len(state.rows))
    b = rng.choice((a + 1, a + 2, a + 3, *(rng.randrange(len(state.rows)),) * 3))
    return {a: state.rows[b], b: state.rows[a]} if b < len(state.rows) else {}


def move(state: State, rng: random.Random) -> Change:
    """All that a device has of a shard goes to another device."""
    s = rng.randrange(len(state.rows))
    row = state.rows[s]
    a, b = rng.choice(row), rng.randrange(len(state.loads))
    return {} if b in row else {s: tuple(b if device == a else device for device in row)}


def cross(state: State, rng: random.Random) -> Change:
    """Two devices trade places in some shards that follow each other."""
    a, b = rng.sample(range(len(state.loads)), 2)
    first = rng.randrange(len(state.rows))
    end = min(len(state.rows), first + 2 ** rng.randrange(2, 7))
    to = {a: b, b: a}
    return {s: tuple(to.get(d, d) for d in state.rows[s]) for s in range(first, end)}


def reshare(state: State, rng: random.Random) -> Change:
    """Some microbatches of a shared shard go from one of its devices to another."""
    if not (shared := state.shared):
        return {}
    s = rng.choice(shared)
    a, b = rng.sample(sorted(set(state.rows[s])), 2)
    return _given(state, rng, s, a, b, rng.choice((1, 1, 2, 3)))


def give(state: State, rng: random.Random) -> Change:
    """Some microbatches of a shard go from a device to another."""
    a, b = rng.sample(range(len(state.loads)), 2)
    shards = _givable(state, a, b)
    return _given(state, rng, rng.choice(shards), a, b, rng.randrange(1, 5)) if shards else {}


def even(state: State, rng: random.Random) -> Change:
    """Microbatches go from a device with much to do to one with little, until both have as much."""
    weighed = [load * (1 + 0.02 * rng.random()) for load in state.loads]
    a, b = weighed.index(max(weighed)), weighed.index(min(weighed))
    shards = _givable(state, a, b)
    if a == b or not shards:
        return {}
    s = rng.choice(shards)
    each = state.times[a][s] + state.times[b][s]
    return _given(state, rng, s, a, b, max(1, (state.loads[a] - state.loads[b]) // max(1, each)))


MOVES: Sequence[tuple[Callable[[State, random.Random], Change], int]] = (
    (swap, 5),
    (move, 1),
    (cross, 2),
    (reshare, 3),
    (give, 2),
    (even, 3),
)
"""The moves, each with how often it is drawn."""


def drawn(state: State, rng: random.Random) -> Change:
    """A change of any kind."""
    chosen = rng.choices([move for move, _ in MOVES], [weight for _, weight in MOVES])[0]
    return chosen(state, rng)


def _givable(state: State, a: int, b: int) -> list[int]:
    """The shards of device a that b may have a part of."""
    full = len(state.shared) >= state.replicas
    return [
        s
        for s, row in enumerate(state.rows)
        if a in row and (b in row or (row.count(a) == len(row) and not full))
    ]


def _given(state: State, rng: random.Random, s: int, a: int, b: int, count: int) -> Change:
    """So many microbatches of a shard go from device a to b: any, or some that follow in turn."""
    row = list(state.rows[s])
    those = [m for m, device in enumerate(row) if device == a]
    if rng.random() < 0.5:
        rng.shuffle(those)
    else:
        first = rng.randrange(len(those))
        those = those[first:] + those[:first]
    for m in those[:count]:
        row[m] = b
    return {s: tuple(row)}
