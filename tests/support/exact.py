"""The shortest round of a strategy in any order of its copies: branch and bound.

What computes keeps its order. Copies and updates on the host come in any order, rounds ahead if
they like, each when it likes; a value takes its bytes from the start of the op that writes it first
to the end of those that use it last, wherever they lie. So no `DeviceRound` is shorter. For a
period T it looks for starts s with

    every need      s_j ≥ s_i + us_i (of an op of the round before: less T)
    every stream    for a whole h:  s_i + us_i ≤ s_j + h T  and  s_j + us_j ≤ s_i + (1 - h) T
    any time        bytes alive + reserve ≤ device

The first two are differences, once h is chosen, whose longest paths are kept: they bound every h.
Starts that fit these are as early as may be, loads then as late as may be. If two ops of a stream
overlap, either comes first; if too many bytes are alive, one of these values ends before another
begins. Nothing else is possible, so a search that finds nothing is a proof.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from planner.lowering import DeviceRound
from planner.rounds import Entry, dependencies, queued
from planner.rounds.slab import buffers_of
from planner.rounds.timeline import Needs
from planner.shards import Links, Strategy
from plans.ops import Lane, Stream

Starts = NDArray[np.float64]
Paths = NDArray[np.float64]  # [i, j]: s_j is at least so many µs behind s_i
Arc = tuple[int, int, float]
_NEVER, _LITTLE = -1e15, 1e-6


class Spent(Exception):
    """The nodes were used up: there may be such a round or not."""


@dataclass(frozen=True)
class Alive:
    """A value that comes and goes: the op that begins it, and those of which the last ends it."""

    bytes: int
    first: int
    last: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Exact:
    """A strategy's ops, which have no order yet. room: bytes for values that come and go."""

    entries: Sequence[Entry]
    needs: Needs
    values: Sequence[Alive]
    room: int

    @classmethod
    def of(cls, strategy: Strategy, links: Links, device_bytes: int) -> "Exact":
        """The ops as they are laid out, but in bytes of their own."""
        made = DeviceRound(strategy, links)
        needs = dependencies(made.entries)
        room = device_bytes - made.reserves[0]
        buffers = [b for value in made.walk.values[0] for b in buffers_of(value, 0)]
        found = list[Alive]()
        for buffer in buffers:
            uses = [
                at
                for at, one in enumerate(made.entries)
                if buffer.name in (*one.reads.values(), *one.writes.values())
            ]
            if not uses or buffer.name in made.entries[uses[0]].reads.values():
                room -= buffer.bytes  # always there
                continue
            followed = {dep for at in uses for dep in needs[at]}
            last = [at for at in uses if at not in followed] or uses
            found.append(Alive(buffer.bytes, uses[0], tuple(last)))
        return cls(made.entries, needs, found, room)

    @cached_property
    def us(self) -> NDArray[np.float64]:
        return np.array([one.us for one in self.entries], float)

    @cached_property
    def queues(self) -> Mapping[Stream, Sequence[int]]:
        return queued(self.entries)

    @cached_property
    def compute(self) -> Sequence[int]:
        """What computes, in turn."""
        return next(q for stream, q in self.queues.items() if stream.lane is Lane.COMPUTE)

    @cached_property
    def free(self) -> Sequence[Sequence[int]]:
        """The ops of each stream whose order is open."""
        return [q for stream, q in self.queues.items() if stream.lane is not Lane.COMPUTE]

    @cached_property
    def loads(self) -> Sequence[int]:
        return next((q for s, q in self.queues.items() if s.lane is Lane.H2D), ())

    def starts(self, period: int, nodes: Iterable[object]) -> Starts | None:
        """Starts of a round that repeats so; None where there are none, Spent when the nodes are
        used up."""
        begin = _Node(self, period).begin()
        stack = [begin] if begin is not None else []
        for _ in nodes:
            if not stack:
                return None
            now = stack.pop()
            found = now.likely
            if (children := now.divided(found)) is None:
                return found
            stack += reversed(children)
        raise Spent

    def holds(self, period: int, starts: Starts) -> bool:
        """True if these starts repeat so: nothing of the search is used."""
        ends, order = starts + self.us, [*pairwise(self.compute)]
        kept = all(
            starts[at] >= ends[dep] - (dep < 0) * period - _LITTLE
            for at, deps in enumerate(self.needs)
            for dep in deps
        )
        kept &= all(starts[j] >= ends[i] - _LITTLE for i, j in order)
        for queue in self.queues.values():
            line = sorted((starts[at] % period, at) for at in queue)
            line.append((line[0][0] + period, line[0][1]))
            kept &= all(b >= a + self.us[at] - _LITTLE for (a, at), (b, _) in pairwise(line))
        begins = [starts[value.first] for value in self.values]
        return kept and all(
            sum(self.values[n].bytes for n, _ in self.alive(period, starts, now)) <= self.room
            for now in begins
        )

    def alive(self, period: int, starts: Starts, now: float) -> Iterator[tuple[int, int]]:
        """The values that are alive then, and in which round each began."""
        for n, value in enumerate(self.values):
            begin, end = starts[value.first], max(starts[at] + self.us[at] for at in value.last)
            lap = math.floor((now - begin + _LITTLE) / period)
            while end > begin and end + lap * period > now + _LITTLE:
                yield n, lap
                lap -= 1


@dataclass(frozen=True, eq=False)
class _Node:
    """Some of the rounds of a period."""

    of: Exact
    period: int
    paths: Paths | None = None

    def begin(self) -> "_Node | None":
        """All rounds of the period; None where there are none."""
        us, count = self.of.us, len(self.of.us)
        paths = np.full((count, count), _NEVER)
        np.fill_diagonal(paths, 0)
        chain = [*pairwise([self.of.compute[-1] - count, *self.of.compute])]
        for dep, at in chain + [(dep, at) for at, deps in enumerate(self.of.needs) for dep in deps]:
            paths[dep, at] = max(paths[dep, at], us[dep] - (dep < 0) * self.period)
        return self._closed(paths)

    @property
    def likely(self) -> Starts:
        """As early as may be, loads then as late as may be."""
        assert self.paths is not None
        starts = self.paths[self.of.compute[0]].copy()
        others = [at for at in range(len(starts)) if at not in self.of.loads]
        if self.of.loads:
            apart = self.paths[np.ix_(self.of.loads, others)]
            starts[self.of.loads] = (starts[others] - apart).min(axis=1)
        return starts

    def divided(self, starts: Starts) -> "list[_Node] | None":
        """Parts that have all these rounds; None where these starts are those of one."""
        ways = self._crowded(starts)
        ways = self._overlap(starts) if ways is None else ways
        if ways is None:
            return None
        return [node for node in map(self._with, ways) if node is not None]

    def _crowded(self, starts: Starts) -> list[list[Arc]] | None:
        """Where too many bytes are alive, the ways to end one value before another begins."""
        of, found, most = self.of, list[tuple[int, int]](), self.of.room
        for value in of.values:
            alive = [*of.alive(self.period, starts, starts[value.first])]
            if (total := sum(of.values[n].bytes for n, _ in alive)) > most:
                found, most = alive, total
        if not found:
            return None
        over, least = most - of.room, list[tuple[int, int]]()
        for n, lap in sorted(found, key=lambda one: of.values[one[0]].bytes):
            if of.values[n].bytes < over:
                over -= of.values[n].bytes  # too much is alive without it
            else:
                least.append((n, lap))
        return [
            [
                (at, of.values[late].first, of.us[at] + (lap - other) * self.period)
                for at in of.values[early].last
            ]
            for early, lap in least
            for late, other in least
            if (early, lap) != (late, other)
        ]

    def _overlap(self, starts: Starts) -> list[list[Arc]] | None:
        """Where two ops of a stream overlap, either before the other: of those with the least
        play."""
        assert self.paths is not None
        of, period, found, least = self.of, self.period, None, math.inf
        for queue in of.free:
            for i, j in combinations(queue, 2):
                lap, gap = divmod(starts[j] - starts[i], period)
                before = gap >= of.us[i] - _LITTLE
                play = -self.paths[j, i] - self.paths[i, j]
                if (before and gap <= period - of.us[j] + _LITTLE) or play >= least:
                    continue
                shift = (lap + before) * period  # of the j that overlaps
                least, found = play, [[(i, j, of.us[i] + shift)], [(j, i, of.us[j] - shift)]]
        return found

    def _with(self, arcs: Sequence[Arc]) -> "_Node | None":
        """The rounds that keep these as well."""
        assert self.paths is not None
        paths = self.paths
        for i, j, us in arcs:
            if us + paths[j, i] > _LITTLE:
                return None
            paths = np.maximum(paths, paths[:, i, None] + (us + paths[None, j, :]))
        return self._closed(paths)

    def _closed(self, paths: Paths) -> "_Node | None":
        """With all longest paths, and what follows from them for ops of a stream."""
        while True:
            for k in range(len(paths)):
                np.maximum(paths, paths[:, k, None] + paths[None, k, :], out=paths)
            if paths.diagonal().max() > _LITTLE:
                return None
            tighter = [self._tightened(paths, np.array(queue)) for queue in self.of.free]
            if None in tighter:
                return None
            if not any(tighter):
                return _Node(self.of, self.period, paths)

    def _tightened(self, paths: Paths, queue: NDArray[np.int64]) -> bool | None:
        """True if whole h leave some ops of a stream less play, None if they leave none."""
        us, low, period = self.of.us[queue], paths[np.ix_(queue, queue)], self.period
        least = np.ceil((us[:, None] + low.T) / period - 1e-9)
        most = np.floor((period - us[None, :] - low) / period + 1e-9)
        apart = ~np.eye(len(queue), dtype=bool)
        if (least > most)[apart].any():
            return None
        tight = us[:, None] - most * period
        better = apart & (tight > low + _LITTLE)
        paths[np.ix_(queue, queue)] = np.where(better, tight, low)
        return bool(better.any())


def shortest_us(
    exact: Exact, least: int, most: int, part: int, nodes: Iterator[object]
) -> int | None:
    """A period that it has, no more than 1/part above the shortest while there are nodes; None
    where `most` is too short. least: is too short."""
    if exact.starts(most, nodes) is None:
        return None
    while most - least > max(1, most // part):
        middle = (least + most) // 2
        try:
            found = exact.starts(middle, nodes)
        except Spent:
            break
        least, most = (middle, most) if found is None else (least, middle)
    return most
