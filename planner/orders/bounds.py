"""Lower bounds with names on the largest span of any order.

    load           the time of a device's own passes
    fill, drain    and the time that it waits between its first forward and its first backward, and
                   after its last forward, since memory limits the microbatches in flight
    round trip     as many microbatches as memory takes, again and again to the end and back
    critical path  to a device, through all that must run or wait there, and back

A span is a device's time from its first pass to its last. Nothing is assumed about the sequence of
microbatches; each term holds for any schedule within the limits.
"""

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from planner.orders.passes import Pipeline, Places
from planner.orders.stages import NEVER, Homes


@dataclass(frozen=True)
class _Road:
    """The least time of a microbatch between shards, wherever its replicas are.

    down, up, weight: of each shard's passes F, I and W; hop: from the shard before.
    """

    down: list[int]
    up: list[int]
    weight: list[int]
    hop: list[int]

    @classmethod
    def of(cls, pipeline: Pipeline, homes: Homes) -> "_Road":
        shards = range(pipeline.shards)
        used = [[pipeline.costs[d][s] for d in sorted(set(homes.where[s]))] for s in shards]
        stays = [
            s == 0 or any(a == b for a, b in zip(homes.where[s - 1], homes.where[s], strict=True))
            for s in shards
        ]
        return cls(
            [min(c.forward for c in row) for row in used],
            [min(c.input for c in row) for row in used],
            [min(c.weight for c in row) for row in used],
            [0 if stays[s] else min(c.hop for c in used[s]) for s in shards],
        )

    def there(self, start: int, end: int) -> int:
        """From the begin of one shard's forward to the begin of a later one's."""
        return sum(self.down[start:end]) + sum(self.hop[start + 1 : end + 1])

    def back(self, start: int, end: int) -> int:
        """From the end of a shard's backward to that of an earlier one."""
        return sum(self.up[end:start]) + sum(self.hop[end + 1 : start + 1])

    def trip(self, shard: int) -> int:
        """From the end of a shard's forward to the begin of its backward."""
        last = len(self.down) - 1
        inner = sum(self.down[shard + 1 :]) + sum(self.up[shard + 1 :])
        return inner + 2 * sum(self.hop[shard + 1 : last + 1])


class Ladder(NamedTuple):
    """The least largest span as far as fills and drains tell, and the depths that reach it.

    depth: by shard, how many forwards a device runs before the first backward.
    """

    span: int
    depth: tuple[int, ...]


def bounds(pipeline: Pipeline, places: Places) -> dict[str, int]:
    """Each bound by its name."""
    homes = Homes.of(pipeline, places)
    road = _Road.of(pipeline, homes)
    sites = [_Site(pipeline, homes, road, d) for d in range(pipeline.devices)]
    sites = [site for site in sites if site.count]
    fills = [site.load() + site.waits() for site in sites]
    if _is_chain(places):
        fills.append(ladder(pipeline, places).span)
    return {
        "load": max(site.load() for site in sites),
        "fill and drain": max(fills),
        "round trip": max(site.round_trip() for site in sites),
        "critical path": max(
            (
                site.path(start, shard)
                for start in _starts(places)
                for site in sites
                for shard in site.count
                if shard >= start
            ),
            default=0,
        ),
    }


def ladder(pipeline: Pipeline, places: Places) -> Ladder:
    """Depths for which no device waits longer than it must for its first backward.

    From the first forward to the first backward a device does forwards only, a whole number, and
    the device before it takes a forward, a backward and two hops longer. So some wait, or the last
    of their forwards ends too late; the span is the least that all devices can keep. Exact where
    every shard has one device and every device one shard, a guide elsewhere.
    """
    homes = Homes.of(pipeline, places)
    road = _Road.of(pipeline, homes)
    sites = [_Site(pipeline, homes, road, d) for d in range(pipeline.devices)]
    own = [sorted(set(where)) for where in homes.where]
    rungs = [_Rung.of(pipeline, [sites[d] for d in home], road, s) for s, home in enumerate(own)]
    low = max(rung.busy for rung in rungs)
    high = low + sum(rung.step for rung in rungs)
    while low < high:
        span = (low + high) // 2
        if _climb(rungs, span) is None:
            low = span + 1
        else:
            high = span
    depths = _climb(rungs, low) or [1] * len(rungs)
    return Ladder(low, tuple(-(-n // len(home)) for n, home in zip(depths, own, strict=True)))


class _Rung(NamedTuple):
    """A shard in a ladder. busy: what its device does and waits for apart from its fill. forward:
    how often one comes. step: how much sooner its first forward is, and how much later its first
    backward, than those of the shard behind. most: microbatches in flight."""

    busy: int
    forward: int
    step: int
    most: int

    @classmethod
    def of(cls, pipeline: Pipeline, sites: "list[_Site]", road: _Road, shard: int) -> "_Rung":
        behind = shard + 1 < pipeline.shards
        step = road.down[shard]
        if behind:
            step += road.up[shard + 1] + 2 * road.hop[shard + 1]
        return cls(
            max(site.load() + site.drain() * site.apart() for site in sites),
            max(sum(site.costs[s].forward for s in site.count) for site in sites) // len(sites),
            step,
            sum(site.most(shard) for site in sites),
        )


def _climb(rungs: list[_Rung], span: int) -> list[int] | None:
    """The depths with which all devices keep a span; None where they cannot."""
    depths: list[int] = []
    height = 0  # from the first forward of a shard to its first backward
    for busy, forward, step, most in reversed(rungs):
        height += step
        if not forward:
            depths.append(1)
            continue
        depth, waits = divmod(height, forward)
        if depth >= most:
            depth, waits = most, height - most * forward
        elif waits > span - busy:
            depth, waits, height = depth + 1, 0, (depth + 1) * forward
        if waits > span - busy:
            return None
        depths.append(max(1, depth))
    return depths[::-1]


def _is_chain(places: Places) -> bool:
    """Every shard has one device and every device one shard."""
    return len({place[0] for place in places}) == sum(len(place) for place in places)


def _starts(places: Places) -> list[int]:
    """The shards from whose first forward to whose last backward a path counts."""
    return [shard for shard, place in enumerate(places) if len(set(place)) == 1]


class _Site:
    """A device with its shards. count: the microbatches of each there."""

    def __init__(self, pipeline: Pipeline, homes: Homes, road: _Road, device: int) -> None:
        self.costs, self.road = pipeline.costs[device], road
        self.limit = NEVER if pipeline.limits is None else pipeline.limits[device]
        self.own = {s: set(homes.own(device, s)) for s in homes.shards(device)}
        self.count = {s: len(own) for s, own in self.own.items()}
        self.forwards = [s for s in self.count if pipeline.has_forward(s)]

    def load(self) -> int:
        """The time of all passes."""
        costs = self.costs
        return sum(n * (costs[s].forward + costs[s].backward) for s, n in self.count.items())

    def waits(self) -> int:
        """Before the first backward, and after the last forward."""
        fill, drain = self.fill(), self.drain()
        return fill + drain if self.apart() else max(fill, drain)

    def apart(self) -> bool:
        """Memory cannot take all forwards: the last comes after the first backward."""
        held = min((self.costs[s].held for s in self.forwards), default=0)
        return held > 0 and sum(self.count[s] for s in self.forwards) > self.limit // held

    def most(self, shard: int) -> int:
        """The most microbatches of a shard that may be in flight here."""
        held, n = self.costs[shard].held, self.count[shard]
        return min(n, self.limit // held) if held else n

    def fill(self) -> int:
        """The time from the first forward to the first backward, less what runs meanwhile."""
        road = self.road
        until = min(
            road.there(start, s) + road.down[s] + road.trip(s)
            for s, own in self.own.items()
            for start in {self._first(m) for m in own}
        )
        items = [(self.costs[s].held, self.costs[s].forward, self.count[s]) for s in self.forwards]
        return max(0, until - _packed(items, self.limit))

    def _first(self, microbatch: int) -> int:
        """The first shard of a microbatch here."""
        return min(s for s, own in self.own.items() if microbatch in own)

    def drain(self) -> int:
        """The time from the last forward to its backward, less what runs meanwhile.

        That is what is in flight and fits beside it; a shard without forwards needs no memory yet.
        """
        if len(self.forwards) < len(self.count):
            return 0
        return max(0, min(self.road.trip(s) - self._behind(s) for s in self.forwards))

    def _behind(self, shard: int) -> int:
        """The most work of other microbatches that can wait when a shard's last forward ends."""
        room = self.limit - self.costs[shard].held
        whole, parts = [], []
        for s in self.forwards:
            cost, n = self.costs[s], self.count[s] - (s == shard)
            whole += [(cost.held, cost.backward, n), (cost.left, cost.weight, n)]
            parts += [(cost.held - cost.left, cost.input, n), (cost.left, cost.weight, n)]
        return min(_packed(whole, room), _packed(parts, room))

    def round_trip(self) -> int:
        """As many forwards as memory takes, the trip and a backward, again and again."""
        alone = self._alone()
        return self._rounds(alone) + self.costs[alone].weight if alone >= 0 else 0

    def _rounds(self, shard: int) -> int:
        """From the first forward to the last backward of a device's only shard.

        Where memory takes no weight that waits, it or another forward comes in between.
        """
        cost, most = self.costs[shard], self.most(shard)
        times, rest = divmod(self.count[shard] - 1, most)
        around = cost.forward + self.road.trip(shard) + cost.input
        between = 0
        if self.limit - most * cost.held < cost.left:
            between = cost.weight if most == 1 else min(cost.weight, cost.forward)
        return rest * cost.forward + times * (around + between) + around

    def path(self, start: int, shard: int) -> int:
        """From the first forward of `start` through this device's `shard` and back."""
        road, costs = self.road, self.costs
        work = sum(
            n * (costs[s].forward + costs[s].input) for s, n in self.count.items() if s >= shard
        )
        if self._alone() >= 0:
            work = max(work + self._early(shard) + self.fill(), self._rounds(shard))
        return road.there(start, shard) + work + road.back(shard, start) + road.weight[start]

    def _alone(self) -> int:
        """The device's only shard, if that has forwards; else -1."""
        return self.forwards[0] if len(self.count) == len(self.forwards) == 1 else -1

    def _early(self, shard: int) -> int:
        """Weights that memory does not let wait for the last backward."""
        cost = self.costs[shard]
        each = min(cost.held, cost.left)
        if not each:
            return 0
        late = 1 + (self.limit - cost.held) // each
        return max(0, self.count[shard] - late) * cost.weight


def _packed(items: list[tuple[int, int, int]], room: int) -> int:
    """At least the work of any items (memory, work, how many) that fit, parts of items allowed."""
    room -= room % (gcd(*(memory for memory, _, _ in items)) or 1)
    total = 0
    for memory, work, n in sorted(items, key=lambda i: (i[0] > 0, -i[1] / (i[0] or 1))):
        fit = n * memory
        if fit <= room:
            total, room = total + n * work, room - fit
        else:
            return total + -(-work * room // memory)
    return total
