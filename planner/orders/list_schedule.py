"""The list scheduler: a device that is free takes, of the passes that can run, the first by rank.

Searches make thousands of schedules, so one is made of whole numbers in flat lists: ranks, times,
masks of microbatches. No deadlock is possible: gradients are added by ascending microbatch, a pass
gets memory only if afterwards each earlier microbatch could still end, one after another, and only
earlier microbatches fill a shard's depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from planner.orders.moves import DeviceRow, DeviceRows
from planner.orders.passes import Order, Pass, Pipeline
from planner.orders.tables import Tables, ranking_of

FAR = 1 << 62


@dataclass(frozen=True)
class Rule:
    """The freedom of a list schedule.

    depth: by shard, how many of its microbatches may be in flight on a device. wait: by device; a W
    starts where the next pass comes no sooner than after so many percent of it. eager: forwards go
    before backwards.
    """

    depth: tuple[int, ...]
    wait: tuple[int, ...]
    eager: bool


def ranked_schedule(
    pipeline: Pipeline, rows: DeviceRows, ranking: Sequence[Pass] | None = None
) -> tuple[int, Order]:
    """The makespan and the order of a list schedule; by default backwards come first.

    ranking: every pass, the first to be taken first. Where it has W, the backwards of these shards
    are I. Infeasible where one microbatch needs more than a device's memory.
    """
    tables = Tables.of(pipeline, ranking or ranking_of(pipeline))
    taken: list[list[int]] = [[] for _ in range(pipeline.devices)]
    end = list_makespan(tables, rows, tables.loads(rows), taken=taken)
    if end == FAR:
        gate = _Gate(tables, rows, None)
        needed = [max(asks) for asks in gate.asks]
        device = max(range(tables.devices), key=lambda d: needed[d] - gate.free[d])
        raise pipeline.lacking(device, needed[device])
    return end, tuple(tuple(tables.passes[i] for i in line) for line in taken)


@lru_cache(1 << 14)
def _masks(row: DeviceRow, devices: int) -> tuple[int, ...]:
    """Each device's microbatches of a row, as bits."""
    masks = [0] * devices
    for m, device in enumerate(row):
        masks[device] |= 1 << m
    return tuple(masks)


def list_makespan(
    tables: Tables,
    rows: DeviceRows,
    times: Sequence[int],
    cut: int = FAR,
    rule: Rule | None = None,
    taken: list[list[int]] | None = None,
) -> int:
    """The makespan of a list schedule; FAR as soon as it is proven longer than `cut`, and where
    memory is too small for a microbatch.

    times: what each device computes, and at least what comes after its last pass. taken: gets each
    device's passes in turn.
    """
    # All in one function and without objects: a call for each pass would double its time.
    devices, M, passes, cost, hop, _, _, bit, _, then, up, adds, weights, adders, begins, _ = tables
    shift = len(passes).bit_length()
    number = (1 << shift) - 1
    home, left = tables.where(rows), list(times)
    todo = [mask for row in rows for mask in _masks(row, devices)]  # gradients to be added
    early = [0] * len(todo)  # of those, what could run but for an earlier microbatch
    gate = _Gate(tables, rows, rule) if tables.limits or rule else None
    if gate and not gate.enough():
        return FAR
    ready: list[list[int]] = [[] for _ in range(devices)]  # passes that can run
    coming: list[list[int]] = [[] for _ in range(devices)]  # times and passes
    free, next_at = [0] * devices, [FAR] * devices
    for i in begins:
        heappush(coming[home[i]], i)
        next_at[home[i]] = 0
    end = 0
    while (now := min(next_at)) < FAR:
        d = next_at.index(now)
        queue, arrivals = ready[d], coming[d]
        while arrivals and arrivals[0] >> shift <= now:
            i = heappop(arrivals) & number
            if (k := adds[i]) >= 0 and todo[k + d] & (bit[i] - 1):
                early[k + d] |= bit[i]
            else:
                heappush(queue, i)
        if gate:
            i = gate.first(d, queue, (arrivals[0] >> shift) - now if arrivals else FAR)
        else:
            i = heappop(queue) if queue else -1
        if i < 0:
            next_at[d] = arrivals[0] >> shift if arrivals else FAR
            continue
        if taken:
            taken[d].append(i)
        time = cost[d][i]
        done = free[d] = now + time
        left[d] -= time
        if done + left[d] > cut:
            return FAR
        if (k := adds[i]) >= 0:
            k += d
            todo[k] = rest = todo[k] ^ bit[i]
            if early[k] and early[k] & (first := rest & -rest):
                early[k] ^= first
                heappush(queue, adders[k // devices * M + first.bit_length() - 1])
        if gate:
            gate.give(d, i, queue)
        if (j := weights[i]) >= 0:
            heappush(arrivals, (done << shift) + j)
        if (j := then[i]) >= 0:
            e = home[j]
            if e == d:
                heappush(arrivals, (done << shift) + j)
            else:
                at = done + hop[e if up[j] else d][j]
                heappush(coming[e], (at << shift) + j)
                if at < free[e]:
                    at = free[e]
                if at < next_at[e]:
                    next_at[e] = at
        elif done > end:
            end = done
        if queue:
            next_at[d] = done
        elif arrivals:
            at = arrivals[0] >> shift
            next_at[d] = at if at > done else done
        else:
            next_at[d] = FAR
    return end


class _Gate:
    """The gate that keeps passes waiting that could run: a rule, and memory, which microbatches
    hold on each device and will still ask for.

    waiting: by device, for memory or for depth. flying: by shard and device, the microbatches whose
    backward has not begun, as bits.
    """

    def __init__(self, tables: Tables, rows: DeviceRows, rule: Rule | None) -> None:
        self.tables, self.rule = tables, rule
        each = range(tables.devices)
        self.waiting: list[list[int]] = [[] for _ in each]
        self.flying = [list(_masks(row, tables.devices)) for row in rows]
        self.free = list(tables.limits or (FAR,) * tables.devices)
        self.earliest = [0] * tables.devices  # microbatch that is not done
        self.held = [[0] * tables.microbatches for _ in each]
        self.asks = [[0] * tables.microbatches for _ in each]
        for i, device in enumerate(tables.where(rows)):
            self.asks[device][tables.passes[i].microbatch] += tables.take[device][i]

    def enough(self) -> bool:
        """Each microbatch fits while it is alone."""
        return all(max(asks) <= free for asks, free in zip(self.asks, self.free, strict=True))

    def first(self, device: int, queue: list[int], idle: int) -> int:
        """The first pass of a queue that may begin, which gets its memory, or -1. idle: the time
        until another one comes."""
        while queue:
            i = queue[0]
            kind, shard, microbatch = self.tables.passes[i]
            least = self.rule.wait[device] * self.tables.cost[device][i] if self.rule else 0
            if kind == "W" and idle * 100 < least:
                return -1
            heappop(queue)
            if self.rule and kind == "F":
                earlier = self.flying[shard][device] & ((1 << microbatch) - 1)
                if earlier.bit_count() >= self.rule.depth[shard]:
                    self.waiting[device].append(i)
                    continue
            if self._take(device, microbatch, self.tables.take[device][i]):
                return i
            self.waiting[device].append(i)
        return -1

    def _take(self, device: int, microbatch: int, amount: int) -> bool:
        """Memory for a microbatch, unless an earlier one could then not end after those before it.
        The earliest always gets it."""
        if not amount:
            return True
        room = self.free[device] - amount
        asks, held = self.asks[device], self.held[device]
        while not asks[self.earliest[device]] and not held[self.earliest[device]]:
            self.earliest[device] += 1
        for m in range(self.earliest[device], microbatch):
            if asks[m] > room:
                return False
            room += held[m]
        self.free[device] -= amount
        asks[microbatch] -= amount
        held[microbatch] += amount
        return True

    def give(self, device: int, i: int, queue: list[int]) -> None:
        """A pass that is not a forward returns memory; those that wait are ready again."""
        kind, shard, microbatch = self.tables.passes[i]
        if kind == "F":
            return
        if kind != "W":
            self.flying[shard][device] ^= 1 << microbatch
        amount = self.tables.give[device][i]
        self.free[device] += amount
        self.held[device][microbatch] -= amount
        for j in self.waiting[device]:
            heappush(queue, j)
        self.waiting[device].clear()
