"""Chains wrapped around the devices of a line, op by op, so that no device idles or waits for long.

    device 0   |  a a a a a a a | b3 b4 |         b is split: its later ops end device 0, its
    device 1   |  b1 b2 | c c c c c | d3 |        first ones begin device 1 (McNaughton's rule)
    device 2   |  d1 d2 | e e e e e e e |

The devices are divided into lines of a few, each with its part of the chains, as much to compute
and to copy as every other. A line is tried in several orders, and more often while it is the
longest of all. What ops waited in a try counts as part of their chain's time in the next.
"""

import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.chains import Chain, Division, Fleet, Part, Run, Timetable, bound_us, dispatched

TRIES = 12  # of a line, on average
_WIDTH = 20  # devices of a line, about
_FIRST = 6  # tries of every line
_REPEATS = 3  # tries of one order, each with what the one before taught
_ENOUGH = 5_000  # within 1/n of the bound a line is not tried again
_SWAPS = 1_000  # of chains between lines
_LONG = 0.8  # of a device's time: what is placed first
_SPREAD = (0.2, 0.35, 0.0)  # of its slack, what a split chain takes more time for at either end
_PATIENCE = (10.0, 5.0, 20.0, 2.0)

_Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]


def scheduled(chains: Sequence[Chain], fleet: Fleet, tries: int = TRIES) -> Timetable:
    """A short timetable; the same for the same chains. tries: orders looked at for each line on
    average, of which most go to those that last longest. ValueError without chains."""
    floor = bound_us(chains, fleet)
    enough = floor + floor // _ENOUGH
    alone = _alone(chains, fleet) if len(chains) <= fleet.devices else None
    if alone and alone.makespan_us <= enough:
        return alone
    lines = [
        _Line(own, [chains[at] for at in own], replace(fleet, devices=width), seed)
        for seed, (own, width) in enumerate(_lines(chains, fleet))
    ]
    for line in lines:
        for _ in range(1, min(tries, _FIRST)):
            line.improve()
    for _ in range((tries - _FIRST) * len(lines)):
        worst = max(lines, key=lambda line: line.best.makespan_us)
        if worst.tried >= 4 * tries or worst.best.makespan_us <= enough:
            break
        worst.improve()
    found = _joined(lines)
    return alone if alone and alone.makespan_us <= found.makespan_us else found


def _alone(chains: Sequence[Chain], fleet: Fleet) -> Timetable:
    """A device for each chain, on links of their own as far as there are."""
    parts = [(Part(at, 0, len(c.compute_us), 0.0, c.us),) for at, c in enumerate(chains)]
    idle = [()] * (fleet.devices - len(chains))
    links = tuple(device % fleet.links for device in range(fleet.devices))
    return dispatched(chains, Division((*parts, *idle), links), fleet.slots, _PATIENCE[0])


def _joined(lines: Iterable["_Line"]) -> Timetable:
    """All lines side by side."""
    runs: list[tuple[Run, ...]] = []
    link_of: list[int] = []
    for line in lines:
        first = max(link_of, default=-1) + 1
        link_of += [first + link for link in line.best.link_of]
        runs += [
            tuple(run._replace(chain=line.numbers[run.chain]) for run in device)
            for device in line.best.runs
        ]
    return Timetable(tuple(runs), tuple(link_of))


def _lines(chains: Sequence[Chain], fleet: Fleet) -> list[tuple[list[int], int]]:
    """The chains and the number of devices of each line: the longest chain to the line that has
    least, then swaps with the line that is least like the average."""
    count = max(1, min(fleet.links, len(chains), round(fleet.devices / _WIDTH)))
    links = [fleet.links // count + (n < fleet.links % count) for n in range(count)]
    width = np.array(links) * fleet.sharers
    us = np.array([(c.us, c.copies_us[-1]) for c in chains], np.float64)
    load, line_of = np.zeros(count), np.zeros(len(chains), np.int64)
    for at in np.argsort(-us[:, 0], kind="stable"):
        line = int(np.argmin((load + us[at, 0]) / width))
        line_of[at] = line
        load[line] += us[at, 0]
    _even(us / np.maximum(us.mean(axis=0), 1), line_of, width)
    return [(np.flatnonzero(line_of == n).tolist(), int(width[n])) for n in range(count)]


def _even(size: _Floats, line_of: _Numbers, width: _Numbers) -> None:
    """Swaps chains between lines, in place, while their sums of `size` (chain, what) become more
    alike for their widths."""
    excess = np.array([size[line_of == n].sum(axis=0) for n in range(len(width))])
    excess -= np.outer(width / width.sum(), size.sum(axis=0))
    for _ in range(_SWAPS if len(width) > 1 else 0):
        cost = (excess**2).sum(axis=1) / width
        worst = int(np.argmax(cost))
        mine, theirs = np.flatnonzero(line_of == worst), np.flatnonzero(line_of != worst)
        there = line_of[theirs]
        less = size[mine][:, None, :] - size[theirs][None, :, :]
        after = ((excess[worst] - less) ** 2).sum(axis=2) / width[worst]
        after += ((excess[there][None] + less) ** 2).sum(axis=2) / width[there]
        gain = cost[worst] + cost[there][None] - after
        row, column = divmod(int(np.argmax(gain)), len(theirs))
        if gain[row, column] <= 1e-9:
            return
        other = int(there[column])
        excess[worst] -= less[row, column]
        excess[other] += less[row, column]
        line_of[mine[row]], line_of[theirs[column]] = other, worst


class Piece(NamedTuple):
    """Ops first..end-1 of a chain, for one device."""

    chain: int
    first: int
    end: int


class _Line:
    """Some devices and their chains, the best timetable so far and what the tries taught."""

    def __init__(
        self, numbers: Sequence[int], chains: Sequence[Chain], fleet: Fleet, seed: int
    ) -> None:
        self.numbers, self.chains, self.fleet = numbers, chains, fleet
        self.random = random.Random(seed)
        self.order = list(range(len(chains)))
        self.waits = [0.0] * len(chains)  # of a chain, per µs that it computes
        self.begin_us = 0.0  # before a device computes
        self.tried = 0
        self.best = self._try()

    def improve(self) -> None:
        """One more try."""
        found = self._try()
        if found.makespan_us < self.best.makespan_us:
            self.best = found

    def _try(self) -> Timetable:
        """Every few tries another order and other habits."""
        habit, repeat = divmod(self.tried, _REPEATS)
        self.tried += 1
        if not repeat:
            self.random.shuffle(self.order)
        lengths = [c.us * (1 + w) for c, w in zip(self.chains, self.waits, strict=True)]
        cap = max(*lengths, sum(lengths) / self.fleet.devices + self.begin_us)
        pieces = _Fill(self.chains, lengths, self.order, self.fleet, cap).pieces()
        spread = _SPREAD[habit % len(_SPREAD)]
        parts = tuple(tuple(_part(self.chains[p.chain], p, cap, spread) for p in d) for d in pieces)
        division = Division(parts, _paired(self.chains, pieces, self.fleet.sharers))
        patience = _PATIENCE[habit % len(_PATIENCE)]
        found = dispatched(self.chains, division, self.fleet.slots, patience)
        self._learn(found)
        return found

    def _learn(self, found: Timetable) -> None:
        waited = [0] * len(self.chains)
        for line in found.runs:
            for before, run in pairwise(line):
                waited[run.chain] += run.start_us - before.end_us
        begins = sum(line[0].start_us for line in found.runs if line)
        self.begin_us = begins / self.fleet.devices
        for at, chain in enumerate(self.chains):
            self.waits[at] += (waited[at] / chain.us - self.waits[at]) / 2


def _part(chain: Chain, piece: Piece, cap: float, spread: float) -> Part:
    """When a piece should run: whole chains at any time, the first ops of a split one at the
    begin, its last ops at the end, both a little longer than they take if the chain has slack."""
    own = chain.reach_us[piece.end] - chain.reach_us[piece.first]
    last = piece.end == len(chain.compute_us)
    us = min(cap, own + spread * max(0.0, cap - chain.us))
    if piece.first and last:
        return Part(*piece, cap - us, cap)
    if not piece.first and not last:
        return Part(*piece, 0.0, us)
    return Part(*piece, 0.0, cap)


def _paired(
    chains: Sequence[Chain], pieces: Sequence[Sequence[Piece]], sharers: int
) -> tuple[int, ...]:
    """The link of each device: those that copy most beside those that copy least."""
    copies = [
        sum(chains[p.chain].copies_us[p.end] - chains[p.chain].copies_us[p.first] for p in line)
        for line in pieces
    ]
    links = len(pieces) // sharers
    link_of = [0] * len(pieces)
    for rank, device in enumerate(sorted(range(len(pieces)), key=lambda d: copies[d])):
        turn, link = divmod(rank, links)
        link_of[device] = links - 1 - link if turn % 2 else link
    return tuple(link_of)


class _Fill:
    """Devices filled one after the other up to `cap`; lives only while that is done.

    lengths: of each chain, what it computes and waits. Chains longer than half of `cap` are put
    whole on a device while they fit one, and others are split where devices are full: these can
    be spared for a while before they go on on the other device.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        lengths: Sequence[float],
        order: Iterable[int],
        fleet: Fleet,
        cap: float,
    ) -> None:
        self.chains, self.lengths, self.fleet, self.cap = chains, lengths, fleet, cap
        self.lead = (fleet.sharers + 1) / 2  # first copies that a device waits for
        given = sorted(order, key=lambda at: lengths[at] < _LONG * cap)
        self.long = [at for at in given if lengths[at] > cap / 2]
        self.short = [at for at in given if lengths[at] <= cap / 2]
        self.begun: Piece | None = None  # the first ops of a chain whose last ones are placed

    def pieces(self) -> list[list[Piece]]:
        """Of every device; what is too much for the others is on the last one."""
        lines: list[list[Piece]] = []
        over = 0.0  # what the devices so far have more than `cap`
        for left in range(self.fleet.devices, 1, -1):
            line, room = self._device(self.cap - over / left)
            over -= room + over / left
            if not (self.long or self.short or self.begun):
                over = max(0.0, over)
            lines.append(line)
        rest = [self.begun] if self.begun else []
        return [*lines, [*rest, *map(self._whole, (*self.long, *self.short))]]

    def _device(self, room: float) -> tuple[list[Piece], float]:
        """The pieces of one device, and the room that they leave."""
        line: list[Piece] = []
        begin = 0.0  # before it computes
        piece, self.begun = self.begun, None
        while piece or self.long or self.short:
            if piece is None:
                piece = self._whole(self._choice(room))
            first = self._cut(piece, room)
            if first < piece.end:
                line.append(Piece(piece.chain, first, piece.end))
                room -= self._us(line[-1])
            if first > piece.first or first == piece.end:
                self.begun = Piece(piece.chain, piece.first, first)
                break
            copy = self.lead * self.chains[piece.chain].copy_us[first]
            room += begin
            begin = min(begin or copy, copy)
            room -= begin
            piece = None
        return line, room

    def _choice(self, room: float) -> int:
        """The next chain, which is taken: a long one that fits, a short one that leaves room for
        another, or the one whose ops fill the room best."""
        at = next((at for at in self.long if self.lengths[at] <= room), None)
        pile = self.long if at is not None else self.short or self.long
        if at is None:
            least = min(self.lengths[at] for at in pile)
            at = next((at for at in pile if self.lengths[at] <= room - least), None)
        if at is None:
            at = min(pile, key=lambda at: self._waste(at, room))
        pile.remove(at)
        return at

    def _waste(self, at: int, room: float) -> float:
        """What the room and the end of the chain differ by, and what its begin would keep from
        the next long chain."""
        piece = self._whole(at)
        first = self._cut(piece, room)
        off = abs(room - self._us(Piece(at, first, piece.end)))
        following = self.lengths[self.long[0]] if self.long else 0.0
        return off + max(0.0, self._us(Piece(at, 0, first)) + following - self.cap)

    def _cut(self, piece: Piece, room: float) -> int:
        """From which op on the piece fits the room best."""
        reach = self.chains[piece.chain].reach_us
        spare = reach[piece.end] - room / self._stretch(piece.chain)
        at = bisect_left(reach, spare, piece.first, piece.end)
        if at > piece.first and spare - reach[at - 1] < reach[at] - spare:
            at -= 1
        return at

    def _us(self, piece: Piece) -> float:
        reach = self.chains[piece.chain].reach_us
        return (reach[piece.end] - reach[piece.first]) * self._stretch(piece.chain)

    def _stretch(self, at: int) -> float:
        return self.lengths[at] / self.chains[at].us

    def _whole(self, at: int) -> Piece:
        return Piece(at, 0, len(self.chains[at].compute_us))
