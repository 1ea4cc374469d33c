"""List schedules: a device that is free takes, of the passes that can run, the first by rank.

The search over places makes thousands of them, so a schedule is made of whole numbers in flat
lists: ranks, times, masks of microbatches. No deadlock is possible: gradients are added by
ascending microbatch, and a pass gets memory only if afterwards each earlier microbatch could still
end, one after another.
"""

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from planner.orders.moves import Row, Rows
from planner.orders.passes import Cost, Order, Pass, Pipeline

FAR = 1 << 62


def ranked_schedule(
    pipeline: Pipeline, rows: Rows, ranking: Sequence[Pass] | None = None
) -> tuple[int, Order]:
    """The makespan and the order of a list schedule; by default backwards come first.

    ranking: every pass, the first to be taken first. Where it has W, the backwards of these shards
    are I. Infeasible where one microbatch needs more than a device's memory.
    """
    tables = Tables.of(pipeline, ranking or backwards_first(pipeline))
    taken: list[list[int]] = [[] for _ in range(pipeline.devices)]
    end = judged(tables, rows, tables.loads(rows), taken=taken)
    if end == FAR:
        memory = _Memory(tables, tables.where(rows))
        needed = [max(asks) for asks in memory.asks]
        device = max(range(tables.devices), key=lambda d: needed[d] - memory.free[d])
        raise pipeline.lacking(device, needed[device])
    return end, tuple(tuple(tables.passes[i] for i in line) for line in taken)


def backwards_first(pipeline: Pipeline, split: bool = False) -> list[Pass]:
    """Backwards, deepest first, then forwards, lowest first, then gradients of weights.

    split: backwards are I and W wherever there are weights.
    """
    forwards, backwards, weights = _kinds(pipeline, split)
    return [*backwards, *forwards, *weights]


def breadth_first(pipeline: Pipeline, split: bool = False) -> list[Pass]:
    """Forwards, lowest first, then backwards, deepest first, then gradients of weights."""
    return [one for passes in _kinds(pipeline, split) for one in passes]


def _kinds(pipeline: Pipeline, split: bool) -> tuple[list[Pass], list[Pass], list[Pass]]:
    """All forwards, backwards and gradients of weights, shard after shard."""
    up, each = range(pipeline.shards), range(pipeline.microbatches)
    halved = [split and any(costs[s].weight for costs in pipeline.costs) for s in up]
    return (
        [Pass("F", s, m) for s in up if pipeline.has_forward(s) for m in each],
        [Pass("I" if halved[s] else "B", s, m) for s in reversed(up) for m in each],
        [Pass("W", s, m) for s in reversed(up) if halved[s] for m in each],
    )


class Tables(NamedTuple):
    """A pipeline and a ranking as flat lists; a pass's number is its rank.

    cost, hop, take, give: by device and pass; memory is taken at the begin, given at the end.
    bit: 1 << microbatch. home: the place in the rows one after another. then: the pass that gets
    the result, or -1. up: True where the input comes from the shard before. adds: shard x devices
    where gradients are added, else -1. weights: the W of an I, or -1. adders: by shard and
    microbatch, the pass that adds its gradients. begins: the passes that wait for none.
    """

    devices: int
    microbatches: int
    passes: tuple[Pass, ...]
    cost: list[list[int]]
    hop: list[list[int]]
    take: list[list[int]]
    give: list[list[int]]
    bit: list[int]
    home: list[int]
    then: list[int]
    up: list[bool]
    adds: list[int]
    weights: list[int]
    adders: list[int]
    begins: list[int]
    limits: tuple[int, ...] | None

    @classmethod
    def of(cls, pipeline: Pipeline, ranking: Sequence[Pass]) -> "Tables":
        """The tables of a ranking of all passes."""
        M, number = pipeline.microbatches, {item: i for i, item in enumerate(ranking)}
        fused = Pass("F", pipeline.shards - 1, 0) not in number
        top = pipeline.shards - 1 if fused else pipeline.shards
        kinds = {costs: _numbers(costs, ranking, top) for costs in set(pipeline.costs)}
        cost, hop, take, give = map(
            list, zip(*(kinds[costs] for costs in pipeline.costs), strict=True)
        )
        then = [_next(number, pipeline.shards - 1, item) for item in ranking]
        weights = [number[i._replace(kind="W")] if i.kind == "I" else -1 for i in ranking]
        waiting = {*then, *weights}
        adders = {(i.shard, i.microbatch): number[i] for i in ranking if i.kind in "BW"}
        return cls(
            devices=pipeline.devices,
            microbatches=M,
            passes=tuple(ranking),
            cost=cost,
            hop=hop,
            take=take,
            give=give,
            bit=[1 << i.microbatch for i in ranking],
            home=[i.shard * M + i.microbatch for i in ranking],
            then=then,
            up=[i.kind == "F" or i.shard == top for i in ranking],
            adds=[i.shard * pipeline.devices if i.kind in "BW" else -1 for i in ranking],
            weights=weights,
            adders=[adders[s, m] for s in range(pipeline.shards) for m in range(M)],
            begins=[i for i in range(len(ranking)) if i not in waiting],
            limits=pipeline.limits,
        )

    def where(self, rows: Rows) -> list[int]:
        """The device of each pass."""
        flat = [device for row in rows for device in row]
        return [flat[place] for place in self.home]

    def loads(self, rows: Rows) -> list[int]:
        """The time that each device computes."""
        loads = [0] * self.devices
        for i, device in enumerate(self.where(rows)):
            loads[device] += self.cost[device][i]
        return loads


def _next(number: dict[Pass, int], last: int, item: Pass) -> int:
    """The pass that gets the result of a pass, or -1."""
    kind, s, m = item
    if kind == "W":
        return -1
    if kind == "F" and (after := number.get(Pass("F", s + 1, m))) is not None:
        return after
    # Around at the last shard, which has no F where that is part of its backward; or down.
    s = last if kind == "F" else s - 1
    return number.get(Pass("B", s, m), number.get(Pass("I", s, m), -1))


def _numbers(
    costs: Sequence[Cost], ranking: Sequence[Pass], top: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """A device's cost, hop, take and give of all passes."""
    hop, take, give = [], [], []
    for kind, s, _ in ranking:
        held, left = costs[s].held, costs[s].left
        first = kind == "F" or (s == top and kind != "W")
        # A gradient's hop is that of the shard behind.
        hop.append(costs[s if first else min(s + 1, len(costs) - 1)].hop)
        take.append(held if first else 0)
        give.append({"F": 0, "B": held, "I": held - left, "W": left}[kind])
    return [costs[i.shard].of(i.kind) for i in ranking], hop, take, give


@lru_cache(1 << 14)
def _masks(row: Row, devices: int) -> tuple[int, ...]:
    """Each device's microbatches of a row, as bits."""
    masks = [0] * devices
    for m, device in enumerate(row):
        masks[device] |= 1 << m
    return tuple(masks)


def judged(
    tables: Tables,
    rows: Rows,
    times: Sequence[int],
    cut: int = FAR,
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
    memory = _Memory(tables, home) if tables.limits else None
    if memory and not memory.enough():
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
        while queue:
            i = heappop(queue)
            if not memory or memory.take(d, i):
                break
        else:
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
        if memory:
            memory.give(d, i, queue)
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


class _Memory:
    """The memory that microbatches hold on each device, and that they will still ask for. short:
    the passes of each device that wait for some."""

    def __init__(self, tables: Tables, home: Sequence[int]) -> None:
        self.takes, self.gives = tables.take, tables.give
        self.microbatch = [item.microbatch for item in tables.passes]
        self.free = list(tables.limits or ())
        self.short: list[list[int]] = [[] for _ in self.free]
        self.first = [0] * len(self.free)  # the earliest microbatch that is not done
        self.held = [[0] * tables.microbatches for _ in self.free]
        self.asks = [[0] * tables.microbatches for _ in self.free]
        for i, device in enumerate(home):
            self.asks[device][self.microbatch[i]] += self.takes[device][i]

    def enough(self) -> bool:
        """Each microbatch fits while it is alone."""
        return all(max(asks) <= free for asks, free in zip(self.asks, self.free, strict=True))

    def take(self, device: int, i: int) -> bool:
        """A pass gets its memory, unless an earlier microbatch could then not end after those
        before it. The earliest always gets it."""
        if not (amount := self.takes[device][i]):
            return True
        room = self.free[device] - amount
        asks, held, mine = self.asks[device], self.held[device], self.microbatch[i]
        while not asks[self.first[device]] and not held[self.first[device]]:
            self.first[device] += 1
        for m in range(self.first[device], mine):
            if asks[m] > room:
                self.short[device].append(i)
                return False
            room += held[m]
        self.free[device] -= amount
        asks[mine] -= amount
        held[mine] += amount
        return True

    def give(self, device: int, i: int, queue: list[int]) -> None:
        """A pass returns memory, and those that wait for some are ready again."""
        if amount := self.gives[device][i]:
            self.free[device] += amount
            self.held[device][self.microbatch[i]] -= amount
            for j in self.short[device]:
                heappush(queue, j)
            self.short[device].clear()
