"""Times of an order: every pass as early as it can, and how long devices take from first to last.

A pass waits for the pass before it on its device and for one other, so a network of numbers is
enough, and a pass is timed in a fraction of a microsecond.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from planner.orders.passes import Order, Pass, Pipeline
from profiles.errors import GantryError

NONE = -1
Lines = Sequence[Sequence[int]]
"""For every device the numbers of its passes in turn."""


class InvalidOrder(GantryError):
    """An order that cannot run, that lacks passes or that needs more memory than there is."""


class Times(NamedTuple):
    """By device, in its order: when each pass starts and ends."""

    starts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Network:
    """The passes of an order as numbers, which say what each waits for.

    after: the pass whose result a pass reads, or NONE. lag: the hop between them. before: the
    passes that read its result.
    """

    passes: tuple[Pass, ...]
    numbers: dict[Pass, int]
    device: list[int]
    time: list[int]
    after: list[int]
    lag: list[int]
    before: list[list[int]]
    lines: tuple[list[int], ...]

    @classmethod
    def of(cls, pipeline: Pipeline, order: Order) -> "Network":
        """Every pass gets its place in the order, one device after another, as its number."""
        passes = tuple(item for line in order for item in line)
        numbers = {item: number for number, item in enumerate(passes)}
        device = [d for d, line in enumerate(order) for _ in line]
        after, lag = [NONE] * len(passes), [0] * len(passes)
        before: list[list[int]] = [[] for _ in passes]
        for number, item in enumerate(passes):
            source = source_of(pipeline, numbers, item)
            if source == NONE:
                continue
            after[number] = source
            before[source].append(number)
            if device[source] != device[number]:
                receiver = max((item.shard, number), (passes[source].shard, source))
                lag[number] = pipeline.costs[device[receiver[1]]][receiver[0]].hop
        time = [
            pipeline.costs[d][item.shard].of(item.kind)
            for d, item in zip(device, passes, strict=True)
        ]
        starts = [0]
        for line in order:
            starts.append(starts[-1] + len(line))
        lines = tuple(list(range(*ends)) for ends in pairwise(starts))
        return cls(passes, numbers, device, time, after, lag, before, lines)

    def order(self, lines: Lines) -> Order:
        """The order that numbers stand for."""
        return tuple(tuple(self.passes[number] for number in line) for line in lines)


def timed(pipeline: Pipeline, order: Order) -> Times:
    """Each pass as early as its device and its input allow; InvalidOrder on a deadlock."""
    network = Network.of(pipeline, order)
    ends = _ends(network)
    starts = [end - time for end, time in zip(ends, network.time, strict=True)]
    return Times(
        tuple(tuple(starts[v] for v in line) for line in network.lines),
        tuple(tuple(ends[v] for v in line) for line in network.lines),
    )


def makespan(pipeline: Pipeline, order: Order) -> int:
    """The time from the first pass of all to the last."""
    return max((line[-1] for line in timed(pipeline, order).ends if line), default=0)


def latest_starts(pipeline: Pipeline, order: Order) -> tuple[tuple[int, ...], ...]:
    """By device, when each pass starts as late as it can if devices end as early as they can."""
    network = Network.of(pipeline, order)
    starts = latest(network, network.lines, _ends(network))
    return tuple(tuple(starts[v] for v in line) for line in network.lines)


def spans_of(network: Network, lines: Lines) -> list[int]:
    """Each device's time from the start of its first pass to the end of its last, in lines that
    can run: ends are as early as they can be, and then starts as late as that allows."""
    ends = earliest(network, lines)
    starts = latest(network, lines, ends)
    return [ends[line[-1]] - starts[line[0]] if line else 0 for line in lines]


def earliest(network: Network, lines: Lines) -> list[int]:
    """The end of each pass; NONE for those that never start, as lines wait in a circle."""
    after, lag, time = network.after, network.lag, network.time
    ends = [NONE] * len(time)
    waiting: dict[int, int] = {}  # device that waits for a pass
    at, free = [0] * len(lines), [0] * len(lines)
    ready = list(range(len(lines)))
    while ready:
        device = ready.pop()
        line, now = lines[device], free[device]
        for place in range(at[device], len(line)):
            number = line[place]
            source = after[number]
            if source >= 0:
                arrival = ends[source]
                if arrival < 0:
                    waiting[source] = device
                    at[device], free[device] = place, now
                    break
                arrival += lag[number]
                if arrival > now:
                    now = arrival
            now += time[number]
            ends[number] = now
            if number in waiting:
                ready.append(waiting.pop(number))
    return ends


def latest(network: Network, lines: Lines, ends: Sequence[int]) -> list[int]:
    """The latest start of each pass with which every device is done when `ends` says."""
    before, lag, time = network.before, network.lag, network.time
    starts: list[int | None] = [None] * len(time)
    waiting: dict[int, list[int]] = {}
    at = [len(line) - 1 for line in lines]
    free = [ends[line[-1]] if line else 0 for line in lines]
    ready = list(range(len(lines)))
    while ready:
        device = ready.pop()
        line, now, place = lines[device], free[device], at[device]
        while place >= 0:
            number = line[place]
            missing = NONE
            until = now
            for reader in before[number]:
                start = starts[reader]
                if start is None:
                    missing = reader
                    break
                if start - lag[reader] < until:
                    until = start - lag[reader]
            if missing >= 0:
                waiting.setdefault(missing, []).append(device)
                break
            now = until - time[number]
            starts[number] = now
            ready.extend(waiting.pop(number, ()))
            place -= 1
        at[device], free[device] = place, now
    return [start for start in starts if start is not None]


def source_of(pipeline: Pipeline, numbers: Mapping[Pass, int], item: Pass) -> int:
    """The pass whose result a pass reads, or NONE."""
    kind, shard, microbatch = item
    wanted: list[Pass]
    if kind == "W":
        wanted = [Pass("I", shard, microbatch)]
    elif kind != "F" and shard < pipeline.shards - 1:
        wanted = [Pass("B", shard + 1, microbatch), Pass("I", shard + 1, microbatch)]
    elif kind != "F" and pipeline.has_forward(shard):
        wanted = [Pass("F", shard, microbatch)]
    else:
        wanted = [Pass("F", shard - 1, microbatch)] if shard else []
    for source in wanted:
        if source in numbers:
            return numbers[source]
    if wanted:
        raise InvalidOrder(f"{name(item)} is in the order, but not {name(wanted[0])}")
    return NONE


def _ends(network: Network) -> list[int]:
    """`earliest`; InvalidOrder names the first pass that never starts."""
    ends = earliest(network, network.lines)
    if NONE in ends:
        stuck = ends.index(NONE)
        raise InvalidOrder(
            f"deadlock: {name(network.passes[stuck])} on device {network.device[stuck]} waits for "
            f"{name(network.passes[network.after[stuck]])}, which waits for it in turn"
        )
    return ends


def name(item: Pass) -> str:
    """A pass as plans call it: s3.F2."""
    return f"s{item.shard}.{item.kind}{item.microbatch}"
