"""Chains of shard ops on stateless devices: what is asked for, a bound, and what an order takes.

Any op may run on any device, since its parameters are copied in right before it:

    link       | copy a1 | copy b1 | copy a2 |   | copy b2 |          one copy at a time, full rate
    compute    |         |   a1         | b1      | a2     | b2 |     two slots: a2 takes a1's

An op starts when its copy is over, when the op before it in its chain has ended, on whatever
device, and when its device is free. A device's copies go in the order of its ops; one into a slot
starts when the op that used the slot has ended. A link that several devices share serves them
first come, first served, of copies asked for at one time the one of the earlier place first.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple


@dataclass(frozen=True)
class Chain:
    """Ops that run one after the other: what each computes and what its copy takes, in µs.

    ValueError unless there are as many copies as ops, at least one, and every op takes time.
    """

    compute_us: tuple[int, ...]
    copy_us: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.compute_us or len(self.compute_us) != len(self.copy_us):
            raise ValueError(
                f"a chain of {len(self.compute_us)} ops and {len(self.copy_us)} copies; it must "
                "have at least one op and as many copies"
            )
        if min(self.compute_us) < 1 or min(self.copy_us) < 0:
            raise ValueError("an op of a chain must take at least 1 µs and its copy at least 0")

    @cached_property
    def us(self) -> int:
        """Of all its ops in a row."""
        return self.reach_us[-1]

    @cached_property
    def reach_us(self) -> tuple[int, ...]:
        """Of the first n ops, for n from 0 on."""
        return (0, *accumulate(self.compute_us))

    @cached_property
    def copies_us(self) -> tuple[int, ...]:
        """Of the copies of the first n ops, for n from 0 on."""
        return (0, *accumulate(self.copy_us))


@dataclass(frozen=True)
class Fleet:
    """Alike devices: how many, parameter slots on each, how many share one link.

    ValueError unless every link has as many devices.
    """

    devices: int
    slots: int = 2
    sharers: int = 1

    def __post_init__(self) -> None:
        if min(self.devices, self.slots, self.sharers) < 1 or self.devices % self.sharers:
            raise ValueError(
                f"{self.devices} devices of {self.slots} slots, {self.sharers} on each link; all "
                "must be at least 1, and every link must have as many devices"
            )

    @property
    def links(self) -> int:
        return self.devices // self.sharers


class Run(NamedTuple):
    """Op `op` of chain `chain` on a device: its copy and itself, in µs from the begin."""

    chain: int
    op: int
    copy_start_us: int
    copy_end_us: int
    start_us: int
    end_us: int


@dataclass(frozen=True)
class Timetable:
    """What runs on each device, in order, and which link each device is on."""

    runs: tuple[tuple[Run, ...], ...]
    link_of: tuple[int, ...]

    @cached_property
    def makespan_us(self) -> int:
        return max((line[-1].end_us for line in self.runs if line), default=0)


def bound_us(chains: Sequence[Chain], fleet: Fleet) -> int:
    """No timetable is shorter: the longest chain behind its first copy, all compute spread evenly
    over the devices, all copies spread evenly over the links."""
    compute = sum(chain.us for chain in chains)
    copies = sum(chain.copies_us[-1] for chain in chains)
    return max(
        max(chain.copy_us[0] + chain.us for chain in chains),
        -(-compute // fleet.devices),
        -(-copies // fleet.links),
    )


@dataclass(frozen=True)
class Part:
    """Ops first..end-1 of a chain, to run on one device about evenly between two times in µs."""

    chain: int
    first: int
    end: int
    from_us: float
    to_us: float


@dataclass(frozen=True)
class Division:
    """Which parts each device runs, and its link. A chain's parts may depend on each other only
    from earlier to later devices or only from later to earlier ones."""

    parts: tuple[tuple[Part, ...], ...]
    link_of: tuple[int, ...]


def dispatched(
    chains: Sequence[Chain], division: Division, slots: int, patience: float
) -> Timetable:
    """The timetable of a division. When a slot falls free its device takes, of its parts' next
    ops, the one that is due first, where an op that compute would wait for is due later by
    `patience` times the wait."""
    return _Dispatch(chains, division, slots, patience).timetable()


class _Dispatch:
    """Devices that ask for copies, in the order of time; lives only while a timetable is made."""

    def __init__(
        self, chains: Sequence[Chain], division: Division, slots: int, patience: float
    ) -> None:
        count = len(division.parts)
        self.chains, self.slots, self.patience = chains, slots, patience
        self.link_of = division.link_of
        self.open = [[_Open(chains[p.chain], p) for p in parts] for parts in division.parts]
        self.ops = [sum(part.end - part.first for part in parts) for parts in division.parts]
        self.taken: list[list[tuple[int, int, int, int]]] = [[] for _ in range(count)]
        self.runs: list[list[Run]] = [[] for _ in range(count)]
        self.free_us = [0] * count  # when the ops that were timed have ended
        self.about_us = [0] * count  # when all that were taken have, if none waits for its chain
        self.link_us = [0] * (max(division.link_of, default=0) + 1)
        self.ended: dict[tuple[int, int], int] = {}
        self.waiting: dict[tuple[int, int], int] = {}  # which device waits for an op elsewhere
        self.asked = [
            (0, place, device)
            for device, ops in enumerate(self.ops)
            for place in range(min(slots, ops))
        ]
        heapq.heapify(self.asked)

    def timetable(self) -> Timetable:
        while self.asked:
            asked, _, device = heapq.heappop(self.asked)
            self._copy(asked, device)
            woken = [device]
            while woken:
                woken += self._run(woken.pop())
        return Timetable(tuple(map(tuple, self.runs)), self.link_of)

    def _copy(self, asked: int, device: int) -> None:
        """Takes an op and copies it in."""
        link = self.link_of[device]
        start = max(asked, self.link_us[link])
        part = self._next(device, self.about_us[device] - start)
        op = part.at
        part.go_on(op + 1)
        end = start + part.chain.copy_us[op]
        self.link_us[link] = end
        self.taken[device].append((part.number, op, start, end))
        self.about_us[device] = max(self.about_us[device], end) + part.chain.compute_us[op]

    def _next(self, device: int, hidden: int) -> "_Open":
        """The part to go on with, when so many µs of a copy would be hidden by compute."""
        parts = self.open[device]
        best, least = parts[0], float("inf")
        for part in parts:
            if part.at == part.end:
                continue
            due, wait = part.due_us, part.chain.copy_us[part.at] - hidden
            if wait > 0:
                due += self.patience * wait
            if due < least:
                best, least = part, due
        return best

    def _run(self, device: int) -> list[int]:
        """Times the ops whose copies are known, until one waits for its chain; devices that
        waited for one of them."""
        woken: list[int] = []
        taken, runs, free = self.taken[device], self.runs[device], self.free_us[device]
        while len(runs) < len(taken):
            chain, op, copy_start, copy_end = taken[len(runs)]
            before = self.ended.get((chain, op - 1)) if op else 0
            if before is None:
                self.waiting[chain, op - 1] = device
                break
            start = max(free, copy_end, before)
            free = start + self.chains[chain].compute_us[op]
            self.ended[chain, op] = free
            runs.append(Run(chain, op, copy_start, copy_end, start, free))
            if (chain, op) in self.waiting:
                woken.append(self.waiting.pop((chain, op)))
            following = len(runs) - 1 + self.slots
            if following < self.ops[device]:
                heapq.heappush(self.asked, (free, following, device))
        self.free_us[device] = free
        if len(runs) == len(taken):
            self.about_us[device] = free
        return woken


class _Open:
    """A part, its next op and when the middle of that is due."""

    __slots__ = ("at", "chain", "due_us", "end", "number", "offset", "rate")

    def __init__(self, chain: Chain, part: Part) -> None:
        own = chain.reach_us[part.end] - chain.reach_us[part.first]
        self.chain, self.number = chain, part.chain
        self.rate = (part.to_us - part.from_us) / own
        self.offset = part.from_us - self.rate * chain.reach_us[part.first]
        self.end = part.end
        self.go_on(part.first)

    def go_on(self, at: int) -> None:
        """`at` is the next op."""
        self.at = at
        if at < self.end:
            reach = self.chain.reach_us
            self.due_us = self.offset + self.rate * (reach[at] + reach[at + 1]) / 2
